"""Bucket events from an SQS queue: they say when a listing is worth its while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from velostream.errors import Category, OptionError, SourceError, StoreError
from velostream.model.s3 import S3Store

_MOST_MESSAGES = 10
"""That a request can bring."""
_MOST_REQUESTS = 50
_REFUSED = ("AccessDenied", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_NO_QUEUE = ("QueueDoesNotExist", "NonExistentQueue")


class BucketEvents:
    """A queue that a bucket's events are sent to, for one source alone. Connects when first asked; for one thread.

    What the messages tell is not looked at: they may come late, twice or in another order than what they tell of
    happened, and a listing is true at any time.
    """

    def __init__(self, queue: str, store: S3Store) -> None:
        address = urlsplit(queue)
        if address.scheme not in ("http", "https") or not address.path.strip("/"):
            raise OptionError.value("s3.events.queue", queue, expected="the URL of an SQS queue")
        self._queue = queue
        self._server = f"{address.scheme}://{address.netloc}"
        self._store = store
        self._connected: Any = None
        self._received: list[str] = []

    def arrived(self) -> bool:
        """Whether there were events since the last time. They come again unless they are `settled`."""
        before = len(self._received)
        with self._speaking():
            for _ in range(_MOST_REQUESTS):
                answer = self._client().receive_message(QueueUrl=self._queue, MaxNumberOfMessages=_MOST_MESSAGES)
                messages = answer.get("Messages", ())
                self._received += [message["ReceiptHandle"] for message in messages]
                if not messages:
                    break
        return len(self._received) > before

    def settled(self) -> None:
        """What the events told of is taken in: they needn't come again."""
        received, self._received = self._received, []
        with self._speaking():
            for first in range(0, len(received), _MOST_MESSAGES):
                handles = received[first : first + _MOST_MESSAGES]
                entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
                self._client().delete_message_batch(QueueUrl=self._queue, Entries=entries)

    def close(self) -> None:
        client, self._connected = self._connected, None
        if client is not None:
            client.close()

    def _client(self) -> Any:
        if self._connected is None:
            try:
                import boto3
            except ImportError as error:
                raise StoreError.missing_driver("s3", module="boto3", extra="s3") from error
            keys = {}
            if self._store.access_key is not None:
                keys = {"aws_access_key_id": self._store.access_key, "aws_secret_access_key": self._store.secret_key}
            self._connected = boto3.client("sqs", endpoint_url=self._server, region_name=self._store.region, **keys)
        return self._connected

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise StoreError.missing_driver("s3", module="boto3", extra="s3") from error
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            category = Category.AUTHENTICATION if any(known in code for known in _REFUSED) else Category.NETWORK
            category = Category.MISSING if any(known in code for known in _NO_QUEUE) else category
            raise self._trouble(error, category) from error
        except BotoCoreError as error:
            raise self._trouble(error, Category.NETWORK) from error

    def _trouble(self, error: Exception, category: Category) -> SourceError:
        return SourceError(
            f'queue "{self._queue}" can\'t be read',
            detail=str(error),
            hint="check s3.events.queue, the credentials and what they allow; without a queue the bucket is listed",
            code="source-refused" if category is Category.AUTHENTICATION else "source-unreachable",
            category=category,
        )
