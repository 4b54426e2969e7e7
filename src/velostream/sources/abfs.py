"""`abfs://container@account.dfs.core.windows.net/prefix/*.parquet`: objects of Azure's storage; see `objects.py`.

Delivery guarantee: exactly-once, for as long as the objects that were read stay readable.
"""

from __future__ import annotations

from velostream.model.azure_storage import AzureStore
from velostream.sources.objects import OBJECT_OPTIONS, ObjectSource


class AbfsSource(ObjectSource):
    """Objects of a container. Delivery guarantee: exactly-once, for as long as the objects stay readable."""

    kind = "abfs"
    store = AzureStore
    options = (*OBJECT_OPTIONS, *AzureStore.options)
