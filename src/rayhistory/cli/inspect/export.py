"""`rayhistory export`: the tables of a session as Parquet files."""

import argparse
import asyncio
from functools import partial
from pathlib import Path

import duckdb

from rayhistory.cli import output
from rayhistory.cli.inspect.index_access import open_index, open_resolver
from rayhistory.cli.session_args import SESSION_NAMES, add_session_argument
from rayhistory.errors import UsageError
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_argument(parser, SESSION_NAMES)
    parser.add_argument("--to", metavar="DIR", required=True, help="directory for one Parquet file per table")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_export(arguments, settings))


async def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_resolver(settings) as resolver:
        ref, index = await open_index(resolver, arguments.session or "")
        folder = _prepare_folder(Path(arguments.to), index.tables)
        for table in index.tables:
            await index.read((table,), partial(_write_table, folder / f"{table}.parquet"))
    print(f"{ref.path}: {len(index.tables)} tables in {folder}")
    return 0


def _write_table(path: Path, source: str) -> None:
    with output.atomic_file(str(path)) as file, duckdb.connect() as database:
        output.write_parquet(file, database.sql(f"FROM {source}"))


def _prepare_folder(folder: Path, tables: list[str]) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}") from None
    existing = [table for table in tables if (folder / f"{table}.parquet").exists()]
    if existing:
        raise UsageError(f"{folder} already has {existing[0]}.parquet: choose another directory")
    return folder
