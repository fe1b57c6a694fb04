"""The products of one opened session, as route handlers and commands see them."""

from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product_builder import DEFAULT_TIMEOUT_S, ProductBuilder
from rayhistory.index.products.product_files import OpenProduct
from rayhistory.sessions import SessionRef


class SessionProducts:
    """Opens the products of a session, and starts builds of products that are missing or older than the tables."""

    def __init__(self, builder: ProductBuilder, ref: SessionRef, tables: Manifest) -> None:
        self._builder = builder
        self._ref = ref
        self._tables = tables

    async def open(self, name: str) -> OpenProduct | None:
        """Return the product, or None if it is not built yet. Start a build if it is missing or outdated."""
        return await self._builder.open(self._ref, name, self._tables)

    async def extend(self, outgrown: OpenProduct) -> None:
        """Start a build for new data that the session's tables do not contain, such as new log lines."""
        await self._builder.extend(self._ref, outgrown.manifest, self._tables)

    async def wait(self, name: str, timeout_s: float | None = None) -> OpenProduct:
        """Return the product. Wait for the first build, and raise ProductNotBuilt if it takes too long."""
        timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        return await self._builder.wait(self._ref, name, self._tables, timeout_s)
