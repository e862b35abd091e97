"""Hugging Face through its own client (`huggingface_hub`): its addresses, tokens, session and list of files.

The client's lower layer is used and not its download: docs/architecture.md says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from tengtune import __version__
from tengtune.hub import faults
from tengtune.hub.base import (
    Answer,
    Interrupted,
    Listing,
    RemoteFile,
    address,
    answered_from,
    innermost,
    plain_address,
    range_header,
)

TOKEN = "HF_TOKEN"
PASSING = (408, 429)
"""Refusals that may pass, besides 500 and above."""


class HuggingFace:
    """The hub behind HF_ENDPOINT (default: huggingface.co)."""

    name = "huggingface"
    revision = "main"

    def __init__(self) -> None:
        self._url = address("HF_ENDPOINT", default="https://huggingface.co")
        self.endpoint = plain_address(self._url)
        self._api = HfApi(self._url, library_name="tengtune", library_version=__version__)
        self._headers = build_hf_headers(library_name="tengtune", library_version=__version__)

    def listing(self, repo: str, revision: str) -> Listing:
        with self._faults(repo, revision):
            try:
                info = self._api.model_info(
                    repo,
                    revision=revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                )
            except HfHubHTTPError:  # some of them are ValueErrors, too
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise faults.bad_answer(self, error) from error
            return Listing(info.sha or revision, [_remote(file) for file in info.siblings or []])

    @contextmanager
    def open(self, repo: str, pin: str, file: str, start: int) -> Iterator[Answer]:
        url = hf_hub_url(repo, file, revision=pin, endpoint=self._url)
        with (
            self._faults(repo, pin, file),
            get_session().stream(
                "GET",
                url,
                headers={**self._headers, **range_header(start)},
                timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            ) as answer,
        ):
            hf_raise_for_status(answer)
            yield Answer(answered_from(answer.headers.get("Content-Range"), start), answer.iter_bytes())

    def path(self, repo: str, file: str) -> Path | None:
        return None

    @contextmanager
    def _faults(self, repo: str, revision: str, file: str = "") -> Iterator[None]:
        """The client's errors as Problems, or as Interrupted where trying again may help."""
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise faults.offline_mode(self, "HF_HUB_OFFLINE") from error
        except GatedRepoError as error:
            raise faults.denied(self, repo, error.response.status_code, TOKEN) from error
        except RepositoryNotFoundError as error:
            raise faults.no_model(self, repo, TOKEN) from error
        except RevisionNotFoundError as error:
            raise faults.no_revision(self, repo, revision, []) from error
        except EntryNotFoundError as error:
            raise faults.no_file(self, repo, file) from error
        except HfHubHTTPError as error:
            raise self._refusal(repo, file, error.response.status_code) from error
        except httpx2.HTTPError as error:
            raise Interrupted(innermost(error)) from error

    def _refusal(self, repo: str, file: str, status: int) -> Exception:
        """What a bare status means; a mirror need not send the hub's own error codes."""
        if status >= 500 or status in PASSING:
            return Interrupted(f"HTTP {status}")
        if status in (401, 403):
            return faults.denied(self, repo, status, TOKEN)
        if status == 404:
            return faults.no_file(self, repo, file) if file else faults.no_model(self, repo, TOKEN)
        return faults.refused(self, status)


def _remote(file: RepoSibling) -> RemoteFile:
    """The listed file: large ones by sha256, small ones (kept in git itself) by their blob id."""
    sha256 = file.lfs.sha256.lower() if file.lfs else ""
    return RemoteFile(file.rfilename, file.size or 0, sha256, "" if sha256 else (file.blob_id or "").lower())
