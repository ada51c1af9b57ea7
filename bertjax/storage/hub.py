"""Download files from the Hugging Face Hub, list its data sets, and push a folder to it.

huggingface_hub does the work, with its cache, its login and its environment (HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE).
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "hf:"  # prefix of a folder in Hugging Face's layout, or of a repository
_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_EXTRA = "pip install 'bertjax[hf]'"
_PARQUET_BRANCH = "refs/convert/parquet"  # with the Hub's Parquet copies of data sets
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


def is_repository(name: str) -> bool:
    """Whether a name has the form of a Hub repository: NAME or ORG/NAME."""
    return _REPOSITORY.fullmatch(name) is not None


def is_cached(name: str) -> bool:
    """Whether files from a model's repository are in the cache; False without huggingface_hub."""
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:
        return False
    return (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir()


def download(
    name: str,
    choose: Callable[[Collection[str]], Iterable[str]],
    follow: Callable[[Path], Iterable[str]] = lambda file: (),
    is_complete: Callable[[Path], bool] = lambda folder: True,
) -> tuple[Path, str]:
    """Download files of a repository unless they are cached. Returns (folder, NAME@COMMIT).

    Args:
        name: NAME, ORG/NAME or either with @REVISION; not a local folder.
        choose: Selects the files to download from the names of all files.
        follow: Returns the names of files that a downloaded file refers to, such as the shards in an index.
        is_complete: Whether a cached folder can be used while the Hub is unreachable.

    Raises ValueError naming the folder, the repository, and why neither can be read.
    """
    repository, _, revision = name.partition("@")
    here = f"{PREFIX}{name}: there is no folder {os.path.abspath(name)}"
    if not is_repository(repository):
        raise ValueError(f"{here}; for a Hub repository write NAME, ORG/NAME or ORG/NAME@REVISION")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{here}; to look for {repository} on the Hugging Face Hub, {_EXTRA}")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(repository, revision=revision or None)
        present = {sibling.rfilename for sibling in info.siblings or ()}
        # Download by the revision's name, so that the cache has an entry for it when offline.
        files = [hf_hub_download(repository, file, revision=revision or None) for file in choose(present)]
        if files and Path(files[0]).parent.name != info.sha:
            raise ValueError(f"{PREFIX}{name}: the repository changed during the download; run the command again")
        for further in (follow(Path(file)) for file in files):
            for file in present.intersection(further):
                hf_hub_download(repository, file, revision=info.sha)
    except GatedRepoError:
        raise ValueError(
            f"{here}, and {repository} on the Hub is open only to those who accepted its terms; accept them on its "
            f"page, then {_LOGIN}"
        ) from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{here}, and the Hub has no repository {repository} that you may read; correct the name, or for a "
            f"private one {_LOGIN}"
        ) from None
    except RevisionNotFoundError:
        raise ValueError(f"{here}, and {repository} on the Hub has no revision {revision}") from None
    except _network_errors() as error:
        refusal = f"{here}, and the Hub cannot be reached for {repository}"
        return _cached_files(name, refusal, error, is_complete)
    if not files:
        raise ValueError(
            f"{here}, and {repository} on the Hub has none of the required files; is it a transformers model?"
        )
    return Path(files[0]).parent, f"{repository}@{info.sha}"


def _cached_files(name: str, refusal: str, error: Exception, is_complete: Callable[[Path], bool]) -> tuple[Path, str]:
    """Return the cached files because the Hub is unreachable. Raises ValueError if there are none."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        folder = Path(snapshot_download(repository, revision=revision or None, local_files_only=True))
    except LocalEntryNotFoundError:
        folder = None
    if folder is None or not is_complete(folder):
        reason = _unreachable(error)
        raise ValueError(
            f"{refusal} ({reason}); correct the name, or download it where there is a network: "
            f"hf download {repository} --local-dir {repository.rpartition('/')[2]}"
        ) from None
    if not constants.is_offline_mode():
        warnings.warn(f"{PREFIX}{name}: the Hub cannot be reached; using the files downloaded before", stacklevel=2)
    return folder, f"{repository}@{folder.name}"


class HubFile(NamedTuple):
    """A file in a data set: its local path if it is cached, else its URL at the commit."""

    path: str
    size: int
    sha256: str  # hex; empty for small files, for which the Hub has none


class HubDataSet(NamedTuple):
    """The files of a data set at one commit by name, and the `configs` in its card."""

    files: dict[str, HubFile]
    configs: list[Mapping[str, Any]]
    is_cached: bool = False  # whether these are cached files, which may be only a part


def open_data_set(name: str, revision: str = "") -> HubDataSet:
    """List the files of a data set on the Hub, OWNER/NAME, at a revision, without reading them.

    The user's token opens private and gated data sets. While the Hub is unreachable, lists the cached files. Raises
    ValueError naming the data set, why it cannot be read, and what to run.
    """
    what = f"{PREFIX}{name}{f'@{revision}' if revision else ''}"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{what}: reading a data set from the Hub requires the package huggingface_hub; {_EXTRA}")
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    revision = _PARQUET_BRANCH if revision == "~parquet" else revision
    try:
        info = HfApi().dataset_info(name, revision=revision or None, files_metadata=True)
        if info.gated:
            HfApi().auth_check(name, repo_type="dataset")
    except GatedRepoError:
        raise ValueError(
            f"{what}: open only to those who accepted its terms; accept them on its page, then {_LOGIN}"
        ) from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{what}: the Hub has no such data set that you may read; correct the name, or for a private one {_LOGIN}"
        ) from None
    except RevisionNotFoundError:
        raise ValueError(f"{what}: the data set has no revision {revision}; leave it out for the newest") from None
    except _network_errors() as error:
        return _cached_data_set(name, revision, what, error)
    files = {}
    for sibling in info.siblings or ():
        cached = try_to_load_from_cache(name, sibling.rfilename, revision=info.sha, repo_type="dataset")
        url = f"hf://datasets/{name}@{info.sha}/{sibling.rfilename}"
        sha256 = sibling.lfs.sha256 if sibling.lfs else ""
        files[sibling.rfilename] = HubFile(cached if isinstance(cached, str) else url, sibling.size or 0, sha256)
    return HubDataSet(files, _configs(info.card_data))


def _cached_data_set(name: str, revision: str, what: str, error: Exception) -> HubDataSet:
    from huggingface_hub import DatasetCard, constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # snapshot_download refuses a partly downloaded data set, and large ones are often downloaded in part.
        card = try_to_load_from_cache(name, "README.md", repo_type="dataset", revision=revision or None)
        if isinstance(card, str):
            folder = Path(card).parent
        else:
            folder = Path(
                snapshot_download(name, repo_type="dataset", revision=revision or None, local_files_only=True)
            )
    except LocalEntryNotFoundError:
        reason = _unreachable(error)
        option = f" --revision {revision}" if revision else ""
        raise ValueError(
            f"{what}: the Hub cannot be reached ({reason}); on a machine with network, run `hf download {name} "
            f"--repo-type dataset{option}` (for a part of it, add --include README.md --include 'FOLDER/*'), and copy "
            f"its Hub cache to {constants.HF_HUB_CACHE} here"
        ) from None
    if not constants.is_offline_mode():
        warnings.warn(f"{what}: the Hub cannot be reached; using the files downloaded before", stacklevel=2)
    files = {
        path.relative_to(folder).as_posix(): HubFile(str(path), path.stat().st_size, "")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    configs = _configs(DatasetCard.load(card).data) if isinstance(card, str) else []
    return HubDataSet(files, configs, is_cached=True)


def _configs(card: Any) -> list[Mapping[str, Any]]:
    """The `configs` in a card's metadata. Authors write it by hand, so anything malformed counts as absent."""
    configs = (card.to_dict() if card else {}).get("configs")
    mappings = [config for config in configs if isinstance(config, Mapping)] if isinstance(configs, list) else []
    return [config for config in mappings if isinstance(config.get("config_name"), str)]


def require_pushable(name: str) -> None:
    """Check before a long job that a push can succeed: the name, the login, and write access.

    Raises ValueError naming the repository and the remedy.
    """
    option = f"--push {name}"
    if not is_repository(name):
        raise ValueError(f"{option}: write a Hub repository as NAME or ORG/NAME")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ValueError(f"{option} requires the package huggingface_hub; {_EXTRA}")
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise ValueError(f"{option}: not logged in to the Hugging Face Hub; {_LOGIN} to a token with write access")
    try:
        user = HfApi().whoami()
    except _network_errors() as error:
        raise ValueError(
            f"{option}: the Hub did not accept the login ({_brief(error)}); {_LOGIN} to a token with write access"
        ) from None
    owners = [user["name"], *(group["name"] for group in user.get("orgs", ()))]
    owner = name.rpartition("/")[0]
    if owner and owner not in owners:
        raise ValueError(f"{option}: {user['name']} may write to {', '.join(owners)}, but not to {owner}")


def push(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit to a repository, created if needed. Returns the URL of the commit.

    Other files in the repository stay. Raises ValueError with the Hub's reason.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        created = api.create_repo(name, exist_ok=True, private=private or None)
        return str(api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message=message).commit_url)
    except _network_errors() as error:
        raise ValueError(
            f"--push {name}: the Hub refused the upload: {_brief(error)}; the export is in {folder}"
        ) from None


def _network_errors() -> tuple[type[Exception], ...]:
    # HTTPError comes from the HTTP library that the installed huggingface_hub uses.
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    return HTTPError, OSError, LocalEntryNotFoundError, OfflineModeIsEnabled


def _unreachable(error: Exception) -> str:
    """Explain briefly why the Hub cannot be reached."""
    from huggingface_hub import constants

    return "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else _brief(error)


def _brief(error: Exception) -> str:
    """Shorten a library's error to its type and first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
