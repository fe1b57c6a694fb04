"""The metrics columns of sessions, as products of their indexes."""

from rayhistory.errors import RayHistoryError
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.index.products.product_files import OpenProduct
from rayhistory.metric_columns.columns_product import NAME
from rayhistory.sessions import SessionRef


class ProductColumns:
    """The metric columns of one session, as one build of their product stored them."""

    def __init__(self, product: OpenProduct) -> None:
        self._product = product
        self.build = product.manifest.build
        self.files = {name: file.size for name, file in product.manifest.files.items()}

    async def read(self, name: str, start: int, end: int) -> bytes:
        return await self._product.read(name, start, end)


class ProductColumnStore:
    def __init__(self, products: ProductBuilder) -> None:
        self._products = products

    async def open(self, ref: SessionRef) -> ProductColumns | None:
        """Return the columns of a session, even if its tables are not open; None if there are none."""
        if NAME not in self._products.names:
            return None
        try:
            product = await self._products.stored(ref, NAME)
        except RayHistoryError:  # samples are read from their objects instead
            return None
        return ProductColumns(product) if product else None
