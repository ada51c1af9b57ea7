"""Repositories of the Hugging Face Hub: the files of a model to read, and a folder of an export to push.

huggingface_hub does the work, with its cache, its login and its environment (HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE). Only files that the importer reads are downloaded; pickled weights only where there are no others.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES

CONFIG_FILE = "config.json"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")  # the first that a folder has is read
_INDEXES = tuple(f"{name}.index.json" for name in WEIGHTS_FILES)  # of split weights, which the importer refuses by name
_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# How a repository of sentence-transformers makes vectors of texts.
_VECTOR_FILES = re.compile(
    r"modules\.json|config_sentence_transformers\.json|sentence_[\w-]+_config\.json|"
    r"\w+_(Pooling|Dense|Normalize)/(config\.json|model\.safetensors|pytorch_model\.bin)"
)
_EXTRA = "pip install 'bertjax[hub]'"
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


def fetch(name: str) -> tuple[Path, str]:
    """(the folder with the files of a repository, its name with the commit), downloaded unless they are in the cache.

    `name` is NAME, ORG/NAME or either with @REVISION, and no folder here. Raises ValueError that names the folder, the
    repository, and the reason why neither can be read.
    """
    repository, _, revision = name.partition("@")
    here = f"hf:{name}: there is no folder {os.path.abspath(name)}"
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"{here}, and a repository of the Hub is called NAME, ORG/NAME or ORG/NAME@REVISION")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{here}; to look for {repository} on the Hugging Face Hub, {_EXTRA}")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        about = HfApi().model_info(repository, revision=revision or None)
        there = {sibling.rfilename for sibling in about.siblings or ()}
        files = [hf_hub_download(repository, file, revision=about.sha) for file in _wanted(there)]
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
        return _downloaded_before(name, f"{here}, and the Hub cannot be reached for {repository}", error)
    if not files:
        raise ValueError(f"{here}, and {repository} of the Hub has no {CONFIG_FILE}; is it a model of transformers?")
    return Path(files[0]).parent, f"{repository}@{about.sha}"


def _wanted(there: Collection[str]) -> list[str]:
    """The files to download of those that a repository has."""
    if CONFIG_FILE not in there:
        return []
    weights = [name for name in (*WEIGHTS_FILES, *_INDEXES) if name in there][:1]
    vectors = sorted(name for name in there if _VECTOR_FILES.fullmatch(name))
    return [CONFIG_FILE, *weights, *(name for name in TOKENIZER_FILES if name in there), *vectors]


def _downloaded_before(name: str, refusal: str, error: Exception) -> tuple[Path, str]:
    """The files of the cache, for a Hub that cannot be reached. Raises ValueError if there are none."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        folder = Path(snapshot_download(repository, revision=revision or None, local_files_only=True))
    except LocalEntryNotFoundError:
        folder = None
    if folder is None or not any((folder / weights).is_file() for weights in WEIGHTS_FILES):
        reason = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else _brief(error)
        raise ValueError(
            f"{refusal} ({reason}); correct the name, or download it where there is a network: "
            f"hf download {repository} --local-dir {repository.rpartition('/')[2]}"
        ) from None
    if not constants.is_offline_mode():
        warnings.warn(f"hf:{name}: the Hub cannot be reached; the files downloaded before are used", stacklevel=2)
    return folder, f"{repository}@{folder.name}"


def require_pushable(name: str) -> None:
    """Refuse, before any work, what could not be pushed: a wrong name, no login, an account that may not write there.

    Raises ValueError naming the repository and the remedy.
    """
    option = f"--push {name}"
    if not _REPOSITORY.fullmatch(name):
        raise ValueError(f"{option}: a repository of the Hub is called NAME or ORG/NAME")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{option}: needs the package huggingface_hub; {_EXTRA}")
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

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
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

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
