"""Files of repositories of the Hugging Face Hub, and a folder pushed to one.

huggingface_hub does the work, with its cache, its login and its environment (HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE).
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

PREFIX = "hf:"  # of a folder in Hugging Face's layout, or a repository
_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_EXTRA = "pip install 'bertjax[hf]'"
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


def is_repository(name: str) -> bool:
    """Whether a name is NAME or ORG/NAME, as repositories of the Hub are called."""
    return _REPOSITORY.fullmatch(name) is not None


def download(
    name: str,
    choose: Callable[[Collection[str]], Iterable[str]],
    follow: Callable[[Path], Iterable[str]] = lambda file: (),
    is_complete: Callable[[Path], bool] = lambda folder: True,
) -> tuple[Path, str]:
    """(the folder with files of a repository, its name with the commit), downloaded unless they are in the cache.

    Args:
        name: NAME, ORG/NAME or either with @REVISION, and no folder here.
        choose: The files to download of those that the repository has.
        follow: Further files that a downloaded one leads to, such as the shards of an index.
        is_complete: Whether a folder of the cache can be used where the Hub cannot be reached.

    Raises ValueError that names the folder, the repository, and the reason why neither can be read.
    """
    repository, _, revision = name.partition("@")
    here = f"{PREFIX}{name}: there is no folder {os.path.abspath(name)}"
    if not is_repository(repository):
        raise ValueError(f"{here}, and a repository of the Hub is called NAME, ORG/NAME or ORG/NAME@REVISION")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{here}; to look for {repository} on the Hugging Face Hub, {_EXTRA}")
    from httpx import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        about = HfApi().model_info(repository, revision=revision or None)
        present = {sibling.rfilename for sibling in about.siblings or ()}
        # By the name of the revision, which the cache then knows offline too.
        files = [hf_hub_download(repository, file, revision=revision or None) for file in choose(present)]
        if files and Path(files[0]).parent.name != about.sha:
            raise ValueError(f"{PREFIX}{name}: the repository changed during the download; run the command again")
        for further in (follow(Path(file)) for file in files):
            for file in present.intersection(further):
                hf_hub_download(repository, file, revision=about.sha)
    except GatedRepoError:
        raise ValueError(
            f"{here}, and {repository} of the Hub is open only to those who accepted its terms; accept them on its "
            f"page, then {_LOGIN}"
        ) from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{here}, and the Hub has no repository {repository} that you may read; correct the name, or for a "
            f"private one {_LOGIN}"
        ) from None
    except RevisionNotFoundError:
        raise ValueError(f"{here}, and {repository} of the Hub has no revision {revision}") from None
    except (HTTPError, OSError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        refusal = f"{here}, and the Hub cannot be reached for {repository}"
        return _downloaded_before(name, refusal, error, is_complete)
    if not files:
        raise ValueError(
            f"{here}, and {repository} of the Hub has none of the files needed; is it a model of transformers?"
        )
    return Path(files[0]).parent, f"{repository}@{about.sha}"


def _downloaded_before(
    name: str, refusal: str, error: Exception, is_complete: Callable[[Path], bool]
) -> tuple[Path, str]:
    """The files of the cache, for a Hub that cannot be reached. Raises ValueError if there are none."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        folder = Path(snapshot_download(repository, revision=revision or None, local_files_only=True))
    except LocalEntryNotFoundError:
        folder = None
    if folder is None or not is_complete(folder):
        reason = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else _brief(error)
        raise ValueError(
            f"{refusal} ({reason}); correct the name, or download it where there is a network: "
            f"hf download {repository} --local-dir {repository.rpartition('/')[2]}"
        ) from None
    if not constants.is_offline_mode():
        warnings.warn(f"{PREFIX}{name}: the Hub cannot be reached; the files downloaded before are used", stacklevel=2)
    return folder, f"{repository}@{folder.name}"


def require_pushable(name: str) -> None:
    """Refuse, before any work, what could not be pushed: a wrong name, no login, an account that may not write there.

    Raises ValueError naming the repository and the remedy.
    """
    option = f"--push {name}"
    if not is_repository(name):
        raise ValueError(f"{option}: a repository of the Hub is called NAME or ORG/NAME")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{option}: needs the package huggingface_hub; {_EXTRA}")
    from httpx import HTTPError
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import OfflineModeIsEnabled

    if get_token() is None:
        raise ValueError(f"{option}: not logged in to the Hugging Face Hub; {_LOGIN} to a token that may write")
    try:
        user = HfApi().whoami()
    except (HTTPError, OSError, OfflineModeIsEnabled) as error:
        raise ValueError(
            f"{option}: the Hub did not accept the login ({_brief(error)}); {_LOGIN} to a token that may write"
        ) from None
    owners = [user["name"], *(group["name"] for group in user.get("orgs", ()))]
    owner = name.rpartition("/")[0]
    if owner and owner not in owners:
        raise ValueError(f"{option}: {user['name']} may write to {', '.join(owners)}, and {owner} is none of them")


def push(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit to a repository, which is made if it is not there; the address of the commit.

    Files of the repository that the folder does not have stay. Raises ValueError with the reason of the Hub.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(name, exist_ok=True, private=private or None)
        return str(api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message).commit_url)
    except (HTTPError, OSError) as error:
        raise ValueError(f"--push {name}: the Hub refused it: {_brief(error)}; the export is in {folder}") from None


def _brief(error: Exception) -> str:
    """The first sentence of an error of the library, which writes several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
