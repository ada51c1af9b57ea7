"""A run neither writes nor prints the credentials in its environment."""

from __future__ import annotations

from pathlib import Path

import object_storage
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, write_recipe

from bertjax.__main__ import main
from bertjax.config.credentials import refuse_credentials, without_credentials
from bertjax.storage.remote import RemotePath

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_device")]

SECRET = "canary0SECRET0"
PLANTED = (
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "GOOGLE_API_KEY", "AZURE_STORAGE_KEY",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "GITHUB_TOKEN",
)  # fmt: skip
SHORT = [word for key, value in SIX_STEPS.items() for word in (f"--{key}", str(value))]


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Set a different secret in each variable; returns the bytes that must not appear."""
    if not object_storage.MISSING:
        request.getfixturevalue("server")  # sets some of the variables, for the whole session
    for number, name in enumerate(PLANTED):
        monkeypatch.setenv(name, f"{SECRET}{number}")
    return [SECRET.encode(), SECRET.encode("utf-16-le")]


def leaks(folder: Path, secrets: list[bytes]) -> list[str]:
    """The files with a secret in their content or name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(s in path.read_bytes() or s in str(path).encode() for s in secrets)]


@pytest.mark.long  # trains a run
def test_run_files_contain_no_secret(
    planted: list[bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    recipe, corpus = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 60)
    run = str(tmp_path / "run")
    if not object_storage.MISSING:
        run = f"{request.getfixturevalue('s3')}/run"
    words = [str(recipe), "--data.sources", f"lines:{corpus}", "--data.root", str(tmp_path / "data"), "--run-dir", run]
    words += ["--data.cache-dir", str(tmp_path / "cache"), *SHORT]
    assert main(["pretrain", *words]) == 0
    assert main(["export", run, "--output", str(tmp_path / "exported")]) == 0
    if isinstance(place := RemotePath(run), RemotePath) and "://" in run:
        place.download_all(tmp_path / "copy", place.sizes())
    output = "".join(capfd.readouterr())
    assert "step" in output and SECRET not in output
    assert leaks(tmp_path, planted) == []


def test_object_storage_error_contains_no_secret(
    planted: list[bytes], s3: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path)
    assert main(["pretrain", str(recipe), "--data.sources", f"lines:{s3}-missing/*.txt"]) == 1
    assert SECRET not in "".join(capfd.readouterr())


WITH_CREDENTIALS = (
    f"s3://key:{SECRET}@bucket/text",
    f"https://user:{SECRET}@host/corpus.txt.gz",
    f"https://host/corpus.txt?a=1&X-Amz-Signature={SECRET}",
    f"https://account.blob.core.windows.net/c/a.txt?sv=1&sig={SECRET}",
    f"https://host/a.txt?access_token={SECRET}&b=2",
)


@pytest.mark.parametrize("url", WITH_CREDENTIALS)
def test_url_with_credentials_is_refused_and_masked(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, corpus = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 60)
    before = {*tmp_path.rglob("*")}
    for words in (
        ["pretrain", str(recipe), "--data.sources", f"text:{url}"],
        ["pretrain", str(recipe), "--data.sources", f"lines:{corpus}", "--run-dir", url],
        ["run", "verify", url],
        ["inspect", url],
    ):
        assert main(words) in (1, 2), words
        output = "".join(capfd.readouterr())
        assert SECRET not in output and "***" in output, output
        assert "the credentials in the environment" in output or "verify" in words, output
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/a@b:c/d", "gs://bucket/x?y=z", "https://host:8080/a.txt", "text:a/*.txt", "https://host/?q=tokens"],
)
def test_urls_without_credentials_are_accepted(url: str) -> None:
    refuse_credentials(url)
    assert without_credentials(url) == url
