"""Keep credentials out of URLs, which are written to configs, manifests, logs, reports and model cards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# A password before the host (RFC 3986, section 3.2.1), and the signed queries of S3, Google Cloud Storage and Azure.
_PASSWORD = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]*@")
_SIGNED = re.compile(
    r"(?<=[?&])(?:x-amz-(?:signature|credential|security-token)|x-goog-signature|awsaccesskeyid|signature|sig"
    r"|access_token|token)=[^&\s]*",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Replace the secrets in a text's URLs by `***`."""
    return _SIGNED.sub("***", _PASSWORD.sub("***@", text))


def refuse_credentials(url: str, name: str = "") -> None:
    """Raise ValueError for a URL with a password or a signed query, without repeating it; `name` is the URL's key."""
    safe_url = without_credentials(url)
    if safe_url != url:
        raise ValueError(
            f"{f'{name}=' if name else ''}{safe_url}: a password or signature in a URL would be written into configs, "
            "logs and reports; give the URL without it, and the credentials in the environment (such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or in the storage's own credentials file"
        )


def refuse_credentials_within(values: Mapping[str, Any], prefix: str = "") -> None:
    """Apply `refuse_credentials` to every string of a config, given as nested mappings."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            refuse_credentials_within(value, f"{name}.")
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str):
                refuse_credentials(text, name)
