"""The application's lifespan."""

import asyncio
from pathlib import Path

import httpx
import pytest

from rayhistory.server.app import create_app
from support.recorded_sample import REF, settings_for, store_sample


@pytest.mark.slow
def test_running_folds_end_with_the_lifespan_after_an_error(tmp_path: Path) -> None:
    """A fold that is left running would keep a command from exiting."""
    settings = settings_for(tmp_path)
    store_sample(settings)

    async def scenario() -> None:
        app = create_app(settings)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")
        with pytest.raises(RuntimeError, match="failed command"):
            async with app.router.lifespan_context(app), client:
                request = asyncio.create_task(client.get(f"{REF.url}api/v0/tasks"))
                while not app.state.resolver.builder._running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
                raise RuntimeError("failed command")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
