"""One episode as a Rerun recording, with LeRobot's entity names and a blueprint that shows it without a click."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.colours import EXECUTED, PALETTE, rgba
from keystone_robotics.view.picture import LANE, WIDTH, Lanes, Picture, thin_actions
from keystone_robotics.view.sdk import import_rerun

#: LeRobot's names are ``action`` and ``observation.…``.
ACTION, CANDIDATES, CHOSEN, GRIPPER = "action", "action.candidates", "action.chosen", "action.gripper"
LANES, IMAGE, STATISTICS, ALARM, ABOUT = "action.lanes", "observation.image", "keystone", "keystone.alarm", "about"

COLOURS = np.array([rgba(colour) for colour in PALETTE], np.uint32)
OPEN, CLOSED = (rgba(PALETTE[number]) for number in (5, 1))
NAMES = 0.9  #: how far left of the lanes their names are centred
THIN, THICK = -1.0, -3.0  # negative radii are in points of the screen


class Recording:
    """Buffers pictures, and sends them in columns: a message of its own for each would be larger than its content.

    Args:
        open_sink: called with the stream and the blueprint before the first picture is sent.
        name: id of the recording, as the viewer lists it.
        about: Markdown for the reader.
        lanes: of the pictures, if they show dimensions.
        dims: names of the action dimensions.
        camera: there will be images.
        actions: what the actions of the pictures are, as the title of their view.
    """

    def __init__(
        self,
        open_sink: Callable[[Any, Any], None],
        name: str,
        about: str = "",
        lanes: Lanes | None = None,
        dims: Sequence[str] = (),
        camera: bool = False,
        actions: str = "executed actions",
    ) -> None:
        self._rr = import_rerun()
        self._open_sink, self._about, self._lanes = open_sink, about, lanes
        self._dims, self._camera, self._actions = tuple(dims), camera, actions
        self._stream = self._rr.RecordingStream("keystone", recording_id=name, send_properties=False)
        self._stream.send_recording_name(name)
        self._opened = False
        self._pictures: list[Picture] = []

    def __len__(self) -> int:
        """Pictures that are not sent yet."""
        return len(self._pictures)

    def add(self, picture: Picture) -> None:
        """Add a round; `flush` sends it."""
        self._pictures.append(picture)

    def add_image(self, frame: int, seconds: float | None, image: NDArray[np.uint8], quality: int = 80) -> None:
        """Send a camera image (H, W, 3) of an environment step, as JPEG."""
        self._stream.set_time("frame_index", sequence=frame)
        if seconds is not None:
            self._stream.set_time("timestamp", timestamp=seconds)
        self._stream.log(IMAGE, self._rr.Image(image).compress(jpeg_quality=quality))
        self._stream.reset_time()

    def flush(self) -> None:
        """Send what was added."""
        pictures, self._pictures = self._pictures, []
        if pictures and not self._opened:
            self._open(pictures[0])
        for _, group in groupby(pictures, lambda one: (one.lines.shape[1:], one.executed.shape[1:], one.alarm is None)):
            self._send(list(group))

    def close(self) -> None:
        """Send what was added, and close the file or the connection."""
        self.flush()
        self._stream.disconnect()

    def _open(self, first: Picture) -> None:
        self._opened = True
        kind = "lanes" if self._lanes is not None else f"{first.lines.shape[2]}D"
        shown = blueprint(self._rr, kind, self._camera, first.alarm is not None, self._actions, self._lanes)
        self._open_sink(self._stream, shown)
        rr = self._rr
        strips = rr.LineStrips2D if first.lines.shape[2] == 2 else rr.LineStrips3D
        self._static(CANDIDATES, strips.from_fields(radii=[THIN]))
        self._static(CHOSEN, strips.from_fields(radii=[THICK], colors=[rgba(EXECUTED)]))
        names = self._dims or tuple(f"dimension {number}" for number in range(first.actions.shape[1]))
        self._static(ACTION, rr.SeriesLines(names=list(names)))
        self._static(
            STATISTICS,
            rr.SeriesLines(names=["consensus", "dispersion"], colors=[_of(PALETTE[0]), _of(PALETTE[1])], widths=[2, 2]),
        )
        if first.alarm is not None:
            self._static(
                ALARM, rr.SeriesLines(names=["alarm score", "limit"], colors=[_of(PALETTE[3]), _of(PALETTE[4])])
            )
        if self._lanes is not None:
            lanes = self._lanes
            labels = [
                f"{names[dim] if dim < len(names) else f'dimension {dim}'}: {low:.3g} to {high:.3g}"
                for dim, low, high in zip(lanes.dims, lanes.low, lanes.high, strict=True)
            ]
            beside = [(-NAMES, LANE * number + 0.5) for number in range(len(lanes.low))]
            self._static(
                LANES,
                rr.LineStrips2D(lanes.frame(), colors=[0x808080FF], radii=[-0.5]),
            )
            self._static(f"{LANES}/names", rr.Points2D(beside, labels=labels, radii=[-0.1], show_labels=True))
        if self._about:
            self._static(ABOUT, rr.TextDocument(self._about, media_type="text/markdown"))

    def _static(self, entity: str, values: Any) -> None:
        self._stream.log(entity, values, static=True)

    def _send(self, pictures: Sequence[Picture]) -> None:
        """Pictures of one shape, in one message for each entity."""
        rr = self._rr
        flat = pictures[0].lines.shape[2] == 2
        strips, points = (rr.LineStrips2D, rr.Points2D) if flat else (rr.LineStrips3D, rr.Points3D)
        when = self._times([(one.number, one.frame, one.seconds) for one in pictures])
        clusters = np.minimum(np.concatenate([one.clusters for one in pictures]), len(COLOURS) - 1)
        lines = strips.columns(strips=np.concatenate([one.lines for one in pictures]), colors=COLOURS[clusters])
        self._columns(CANDIDATES, when, lines.partition([len(one.lines) for one in pictures]))
        executed = strips.columns(strips=np.concatenate([one.executed for one in pictures]))
        self._columns(CHOSEN, when, executed.partition([len(one.executed) for one in pictures]))
        if any(len(one.glyphs) for one in pictures):
            where = np.concatenate([one.glyphs for one in pictures])
            closed = np.concatenate([one.closed for one in pictures])
            glyphs = points.columns(
                positions=where, colors=np.where(closed, CLOSED, OPEN).astype(np.uint32), radii=np.where(closed, -4, -7)
            )
            self._columns(GRIPPER, when, glyphs.partition([len(one.glyphs) for one in pictures]))
        numbers = np.array([(one.consensus, one.dispersion) for one in pictures])
        self._columns(STATISTICS, when, rr.Scalars.columns(scalars=numbers.ravel()).partition([2] * len(pictures)))
        if pictures[0].alarm is not None:
            alarms = np.array([one.alarm for one in pictures]).ravel()
            self._columns(ALARM, when, rr.Scalars.columns(scalars=alarms).partition([2] * len(pictures)))
        self._send_actions(pictures)

    def _send_actions(self, pictures: Sequence[Picture]) -> None:
        """One row for each step of `thin_actions`."""
        kept = [thin_actions(*one.actions.shape) for one in pictures]
        steps = [
            (one.number, one.frame + step, one.seconds) for one, own in zip(pictures, kept) for step in own.tolist()
        ]
        if not steps:
            return
        values = np.concatenate([one.actions[own] for one, own in zip(pictures, kept)]).astype(np.float64)
        columns = self._rr.Scalars.columns(scalars=values.ravel()).partition([values.shape[1]] * len(values))
        self._columns(ACTION, self._times(steps, step_times=_within(pictures, kept)), columns)

    def _times(
        self, rows: Sequence[tuple[int, int, float | None]], step_times: Sequence[float] | None = None
    ) -> list[Any]:
        column = self._rr.TimeColumn
        numbers, frames, seconds = zip(*rows, strict=True)
        found = [
            column("frame_index", sequence=np.array(frames, np.int64)),
            column("round", sequence=np.array(numbers, np.int64)),
        ]
        if seconds[0] is not None:  # as LeRobot logs it: seconds since the beginning of the episode, as a point in time
            found.append(column("timestamp", timestamp=np.array(seconds if step_times is None else step_times, float)))
        return found

    def _columns(self, entity: str, when: list[Any], columns: Any) -> None:
        self._rr.send_columns(entity, indexes=when, columns=columns, recording=self._stream)


def _within(pictures: Sequence[Picture], kept: Sequence[NDArray[np.int64]]) -> list[float]:
    """Seconds of the kept steps of each round: they are spread evenly until the next round begins, if that is known."""
    found: list[float] = []
    step = 0.0
    for number, one in enumerate(pictures):
        begin = one.seconds or 0.0
        after = pictures[number + 1] if number + 1 < len(pictures) else None
        if after is not None and after.seconds is not None and after.frame > one.frame:
            step = max(0.0, after.seconds - begin) / (after.frame - one.frame)
        found += (begin + step * kept[number]).tolist()
    return found


def _of(colour: str) -> list[int]:
    value = rgba(colour)
    return [value >> 24 & 255, value >> 16 & 255, value >> 8 & 255]


def _follow(rrb: Any) -> dict[str, Any]:
    """An eye that follows the candidates, which are small beside the way of the whole episode. Old versions have none."""
    known = inspect.signature(rrb.EyeControls3D.__init__).parameters
    return {"eye_controls": rrb.EyeControls3D(tracking_entity=CANDIDATES)} if "tracking_entity" in known else {}


def blueprint(rr: Any, kind: str, camera: bool, alarm: bool, actions: str, lanes: Lanes | None) -> Any:
    """Candidates large on the left, with the camera; actions, agreement and the alarm over time on the right.

    Args:
        rr: the module ``rerun``.
        kind: "3D", "2D" (pixels of the camera) or "lanes".
        camera: there are images.
        alarm: there is an alarm.
        actions: title of the actions over time.
        lanes: that are drawn, if any.
    """
    import rerun.blueprint as rrb

    drawn = [CANDIDATES, CHOSEN, GRIPPER]
    views: list[Any] = []
    if kind == "3D":
        views.append(rrb.Spatial3DView(origin="/", contents=drawn, name="candidates", **_follow(rrb)))
    elif kind == "2D":
        views.append(rrb.Spatial2DView(origin="/", contents=[*drawn, IMAGE], name="candidates"))
    elif lanes is not None:
        count = len(lanes.dims)
        bounds = rrb.VisualBounds2D(x_range=[-2 * NAMES, WIDTH + 0.2], y_range=[-0.3, count * LANE])
        of = "by dimension" if count == lanes.total else f"the {count} of {lanes.total} dimensions that differ most"
        contents = [*drawn, f"{LANES}/**"]
        views.append(rrb.Spatial2DView(origin="/", contents=contents, name=f"candidates, {of}", visual_bounds=bounds))
    if camera and kind != "2D":
        views.append(rrb.Spatial2DView(origin=IMAGE, name="camera"))
    series = [
        rrb.TimeSeriesView(origin=ACTION, contents=[ACTION], name=actions),
        rrb.TimeSeriesView(
            origin=STATISTICS, contents=[STATISTICS], name="agreement, 0 to 1", axis_y=rrb.ScalarAxis(range=(0.0, 1.0))
        ),
    ]
    if alarm:
        series.append(rrb.TimeSeriesView(origin=ALARM, contents=[ALARM], name="alarm"))
    series.append(rrb.TextDocumentView(origin=ABOUT, name="about"))
    known = inspect.signature(rrb.TimePanel.__init__).parameters  # the timeline can be chosen since 0.25
    panel = {"timeline": "frame_index"} if "timeline" in known else {}
    return rrb.Blueprint(
        rrb.Horizontal(rrb.Vertical(*views), rrb.Vertical(*series), column_shares=[3, 2]),
        rrb.BlueprintPanel(state="collapsed"),
        rrb.SelectionPanel(state="collapsed"),
        rrb.TimePanel(state="collapsed", **panel),
        auto_views=False,
        auto_layout=False,
    )
