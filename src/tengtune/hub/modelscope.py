"""ModelScope through its own client (`modelscope-hub`): its addresses, tokens and list of files.

The client's lower layer is used and not its download: docs/architecture.md says why.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import requests
from modelscope_hub import HubApi, HubConfig
from modelscope_hub.errors import (
    APIError,
    AuthenticationError,
    NetworkError,
    NotExistError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
)
from urllib3.exceptions import HTTPError

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

TOKEN = "MODELSCOPE_API_TOKEN"
PIECE = 1 << 18
"""The most bytes taken at a time; what has arrived is given at once, so that a cut loses nothing."""


class _Config(HubConfig):  # type: ignore[misc]
    """The client's settings without the install identifier it would keep in the home folder and send."""

    def get_session_id(self) -> str:
        return uuid.uuid4().hex


class ModelScope:
    """The hub behind MODELSCOPE_ENDPOINT or MODELSCOPE_DOMAIN (default: modelscope.cn)."""

    name = "modelscope"
    revision = "master"

    def __init__(self) -> None:
        logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)  # faults are told as Problems
        url = address("MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN", default="https://modelscope.cn")
        self.endpoint = plain_address(url)
        # A token that is given, even an empty one, keeps the client from unpickling its cookie file.
        config = _Config(endpoint=url, token=os.environ.get(TOKEN, ""))
        self._api: Any = HubApi(config, user_agent={"tengtune": __version__})

    def listing(self, repo: str, revision: str) -> Listing:
        with self._faults(repo):
            try:
                entries = self._api.list_repo_files(repo, "model", revision=revision)
            except NotExistError:
                entries = []
            except APIError:  # some of them are ValueErrors, too
                raise
            except (ValueError, TypeError, AttributeError) as error:
                raise faults.bad_answer(self, error) from error
            if not entries:  # an unknown revision is a 404 or an empty list
                self._need_revision(repo, revision)
            return Listing(revision, [_remote(entry) for entry in entries if entry.type != "tree"])

    @contextmanager
    def open(self, repo: str, pin: str, file: str, start: int) -> Iterator[Answer]:
        with (
            self._faults(repo, file),
            closing(
                self._api.legacy.download_stream(repo, "model", file, pin, headers=range_header(start))
            ) as answer,
        ):
            begin = answered_from(answer.headers.get("Content-Range"), start)
            yield Answer(begin, iter(lambda: answer.raw.read1(PIECE), b""))

    def path(self, repo: str, file: str) -> Path | None:
        return None

    def _need_revision(self, repo: str, revision: str) -> None:
        """Problem when the model has no such revision, or is not there itself."""
        entries = self._api.list_repo_revisions(repo, "model")
        known = [str(entry.get("Revision") or entry.get("name")) for entry in entries]
        if revision not in known:
            raise faults.no_revision(self, repo, revision, known)

    @contextmanager
    def _faults(self, repo: str, file: str = "") -> Iterator[None]:
        """The client's errors as Problems, or as Interrupted where trying again may help."""
        try:
            yield
        except NotExistError as error:
            fault = faults.no_file(self, repo, file) if file else faults.no_model(self, repo, TOKEN)
            raise fault from error
        except (AuthenticationError, PermissionDeniedError) as error:
            raise faults.denied(self, repo, error.status_code, TOKEN) from error
        except (ServerError, RateLimitError) as error:
            raise Interrupted(f"HTTP {error.status_code}") from error
        except APIError as error:
            raise faults.refused(self, error.status_code) from error
        except (NetworkError, requests.RequestException, HTTPError) as error:
            raise Interrupted(innermost(error)) from error


def _remote(entry: Any) -> RemoteFile:
    return RemoteFile(str(entry.path), int(entry.size), str(entry.sha256 or "").lower())
