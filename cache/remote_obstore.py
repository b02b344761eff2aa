"""Buckets (`s3://`, `gs://`, `az://`) and web servers (`http://`, `https://`), by way of obstore.

Credentials come from where each service's own tools look for them. obstore's own retries are off: `remote_requests.py`
decides. Its errors are not chained to ours: their texts hold URLs, and with them perhaps secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forebay.cache.remote_config import RemoteConfig
from forebay.cache.remote_transport import Refused, TransportError, spoken_reason
from forebay.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["OBSTORE_SCHEMES", "ObstoreTransport"]

OBSTORE_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https"})
PART_NBYTES = 8 << 20
"""Of a multipart upload; S3 wants at least 5 MiB."""
PARTS = 4
"""Of them at a time."""
CONNECT_TIMEOUT_S = 5

_used_in: list[int] = []  # the process whose threads obstore's runtime has, once there is one


class ObstoreTransport:
    """Conforms to `Transport`.

    obstore's threads do not survive a fork, and a call in the child would wait for ever; it is refused there.

    Args:
        url: of a folder; may carry credentials.
        config: its limits of time.

    Raises:
        ConfigError: obstore is missing, or does not take the URL.
    """

    def __init__(self, url: str, config: RemoteConfig) -> None:
        self._url, self._config = url, config
        self._store = _open_store(url, config)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._url, self._config)

    async def get(self, path: str, begin: int, end: int) -> memoryview:
        """See `Transport.get`."""
        import obstore

        with _explained():
            return memoryview(await obstore.get_range_async(self._usable(), path, start=begin, end=end))

    async def size(self, path: str) -> int:
        """See `Transport.size`."""
        import obstore

        with _explained():
            nbytes: int = (await obstore.head_async(self._usable(), path))["size"]
        return nbytes

    async def put(self, path: str, data: memoryview, *, new: bool) -> None:
        """See `Transport.put`."""
        import obstore

        whole = obstore.Bytes(data)
        with _explained():
            if new:
                await obstore.put_async(self._usable(), path, whole, mode="create", use_multipart=False)
            else:
                await obstore.put_async(self._usable(), path, whole, chunk_size=PART_NBYTES, max_concurrency=PARTS)

    def listed(self) -> Iterator[tuple[str, int]]:
        """See `Transport.listed`."""
        import obstore

        with _explained():
            for some in obstore.list(self._usable()):
                yield from ((found["path"], found["size"]) for found in some)

    async def delete(self, path: str) -> None:
        """See `Transport.delete`."""
        import obstore

        with _explained():
            await obstore.delete_async(self._usable(), path)

    def _usable(self) -> ObjectStore:
        if not _used_in:
            _used_in.append(os.getpid())
        if _used_in[0] != os.getpid():
            raise Refused(
                f"process {os.getpid()} was forked from {_used_in[0]} after that had read from a bucket, and the "
                f"connections are the parent's; read in threads (forebay.DataLoader does), or start workers with "
                f'multiprocessing_context="spawn"'
            )
        return self._store


def _open_store(url: str, config: RemoteConfig) -> ObjectStore:
    try:
        import obstore.store
    except ImportError as error:
        scheme = urlsplit(url).scheme
        raise ConfigError(f"{scheme}:// needs obstore: pip install 'forebay[remote]'") from error
    scheme = urlsplit(url).scheme
    endpoints = [os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")]
    plain = scheme == "http" or (scheme in ("s3", "s3a") and any(each.startswith("http://") for each in endpoints))
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=config.silence_s),
        "timeout": timedelta(days=1),  # of the whole answer: silence is what counts
        "pool_max_idle_per_host": str(2 * config.connections),
    }
    if plain:
        options["allow_http"] = True
    more: dict[str, Any] = {}
    if scheme in ("s3", "s3a") and (provider := _profile_credentials()) is not None:
        more["credential_provider"] = provider
    more["client_options"] = options
    more["retry_config"] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    try:
        store: ObjectStore = obstore.store.from_url(url, **more)
    except Exception as error:  # noqa: BLE001 - its kinds are many and change with its version
        raise ConfigError(f"{scheme}:// address that obstore does not take: {spoken_reason(error)}") from None
    return store


def _profile_credentials() -> Any:
    """AWS credentials from the files of its own tools, where only these have any and boto3 can read them; else None."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    asked_for = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if not asked_for and not os.path.exists(os.path.expanduser("~/.aws/credentials")):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ConfigError(
            "the credentials of ~/.aws (or AWS_PROFILE) are read by boto3, which is not installed: pip install boto3, "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    return Boto3CredentialProvider()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised again, as what it means
        raise _failure(error) from None


def _failure(error: Exception) -> Exception:
    """What an error of obstore means; a mistake in our own calls, which trying again would hide, is left as it is."""
    from obstore import exceptions

    if not isinstance(error, exceptions.BaseError | OSError):
        return error
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return Refused("there is no such file", missing=True)
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return Refused("access was denied")
    if isinstance(error, exceptions.NotSupportedError):
        return Refused("the server does not answer requests for a range of bytes; serve it by one that does")
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return Refused("there is such a file already")
    if isinstance(error, exceptions.InvalidPathError):
        return Refused(spoken_reason(error))
    reason = spoken_reason(error)
    if any(each in reason for each in ("status code: 405 ", "status code: 501 ", "builder error")):  # of no own kind
        return Refused(f"no such request can be made there: {reason}")
    return TransportError(reason)
