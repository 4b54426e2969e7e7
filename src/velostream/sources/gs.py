"""`gs://bucket/prefix/*.parquet`: objects of Google Cloud Storage; see `objects.py`.

Delivery guarantee: exactly-once, for as long as the objects that were read stay readable.
"""

from __future__ import annotations

from velostream.model.google_storage import GoogleStore
from velostream.sources.objects import OBJECT_OPTIONS, ObjectSource


class GsSource(ObjectSource):
    """Objects of a bucket. Delivery guarantee: exactly-once, for as long as the objects stay readable."""

    kind = "gs"
    store = GoogleStore
    options = (*OBJECT_OPTIONS, *GoogleStore.options)
