"""Reads recordings back with whatever the installed version of Rerun offers."""

import importlib.util

import pytest

if importlib.util.find_spec("rerun") is None:  # every worker of pytest's collects this file, and few need Rerun
    pytest.skip('rerun-sdk is not installed: pip install "keystone-robotics[rerun]"', allow_module_level=True)


def columns(path, entity, static=False):
    """Values of an entity's columns by name (``frame_index``, ``Scalars:scalars``), one per row, in the order of frames."""
    found = {}
    for table in _tables(path, entity, static):
        for name in table.schema.names:
            short = name.removeprefix(f"/{entity}:")
            found.setdefault(short, []).extend(table.column(name).to_pylist())
    if "frame_index" in found:
        order = sorted(range(len(found["frame_index"])), key=lambda row: found["frame_index"][row])
        found = {name: [values[row] for row in order] for name, values in found.items() if len(values) == len(order)}
    return found


def entities(path):
    """Names of all entities with data over time."""
    try:
        from rerun.chunk import RrdReader
    except ImportError:
        from rerun.dataframe import load_recording

        schema = load_recording(path).schema()
        return {column.entity_path.strip("/") for column in schema.component_columns()}
    return {chunk.entity_path.strip("/") for chunk in RrdReader(path).stream()}


def _tables(path, entity, static):
    try:
        from rerun.chunk import RrdReader
    except ImportError:
        from rerun.dataframe import load_recording

        view = load_recording(path).view(index="frame_index", contents=f"/{entity}")
        return [(view.select_static() if static else view.select()).read_all()]
    chunks = [one for one in RrdReader(path).stream() if one.entity_path == f"/{entity}" and one.is_static == static]
    return [one.to_record_batch() for one in chunks]
