"""A scripted PushT expert that, like people, does not always solve the same situation the same way.

It tries pushes from all around the T on a private copy of the physics, takes one of the better ones, walks round the T to where
that push starts (either way round), pushes, steps back and plans again. Both choices are random, so that a policy trained on
its demonstrations faces distinct ways of doing the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.pusht import GOAL_POSE, TABLE, PushTEnv, corners_at, simulator
from keystone_study.train.demonstration import Demonstration

Vectors = NDArray[np.float64]

# Lengths are in pixels, angles in radians, times in seconds; "T frame" is the frame of CORNERS in environments.pusht.
FINGER_RADIUS = 15.0
TICKS, TICK = 10, 0.01  # physics steps in a control step, and their length
STIFFNESS, DAMPING = 100.0, 20.0  # of gym-pusht's controller, which drives the finger to its target

START_GAP = 4.0  # from the finger to the T where a push starts
CLEARANCE = FINGER_RADIUS + 2.5  # of the finger's centre from the T on its way to a push
ROUND_THE_T = FINGER_RADIUS + 6.0  # how far the way round the T keeps from it
BORDER = 12.0  # the finger's centre stays this far from the table's edge
LONGEST_DETOUR = 1.8  # of the longer way round the T, as a multiple of the shorter
RETREAT = 10.0  # how far the finger steps back after a push

CONTACT_SPACING = 10.0
PUSH_ANGLES = (-0.5, -0.25, 0.0, 0.25, 0.5)  # from the normal of the edge
PUSH_STEPS = 12
PACE_RANGE = (3.0, 10.0)  # of a push, per control step
PACE_PER_ERROR = 0.3  # pixels per step for each pixel of error: bold while far away, careful at the end
RUN_UP = 0.6  # of the pace, in the first two steps, while the finger closes the gap
SMALL_ERROR = 8.0  # gains are relative to the error, and below this one to this
WALK_PRICE = 0.0006  # of a pixel between the finger and the start of a push, as gain

GOAL_CORNERS = corners_at(GOAL_POSE)
#: (8, 2): the T's outline in its own frame, and with it (edge i leads from corner i to i + 1) the numbers of its edges.
OUTLINE = np.array(
    [(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], dtype=np.float64
)
#: (2, 2, 2): the T's bar and stem as boxes in its own frame: lower, then upper corner.
BOXES = np.array([[(-60, 0), (60, 30)], [(-15, 30), (15, 120)]], dtype=np.float64)


@dataclass(frozen=True)
class ExpertSettings:
    """How the expert behaves.

    Attributes:
        temperature: of the softmax over the gains of the pushes (1 would be a push that removes all error); 0 takes the best.
        speed: of the finger's target on its way to a push, in pixels per control step.
        longer_way: chance of going round the T the longer way, where that is less than ``LONGEST_DETOUR`` times as long.
        action_noise: standard deviation of the noise on each executed action, in pixels.
    """

    temperature: float = 0.045
    speed: float = 14.0
    longer_way: float = 0.3
    action_noise: float = 0.0


@dataclass(frozen=True)
class Push:
    """A straight push, as planned.

    Attributes:
        start: (2,) where the finger starts, in pixels.
        direction: (2,) of unit length.
        targets: (steps, 2) the actions, in pixels.
        edge: number of the T's edge (``OUTLINE``) that is pushed.
        gain: the part of the error the push removes, less the price of getting there.
    """

    start: Vectors
    direction: Vectors
    targets: Vectors
    edge: int
    gain: float


def pose_error(pose: Vectors) -> Vectors:
    """Mean distance (...) in pixels of the T's corners from where they belong, for poses (..., 3).

    >>> float(pose_error(GOAL_POSE + [3.0, 4.0, 0.0]).round(6))
    5.0
    """
    distance: Vectors = np.linalg.norm(corners_at(pose) - GOAL_CORNERS, axis=-1).mean(axis=-1)
    return distance


def rotated(vectors: Vectors, angle: float) -> Vectors:
    """Vectors (..., 2) turned by an angle."""
    cos, sin = math.cos(angle), math.sin(angle)
    turned: Vectors = vectors @ np.array([[cos, sin], [-sin, cos]])
    return turned


def distance_to_t(points: Vectors) -> Vectors:
    """Distance (...) of points (..., 2) in the T's frame from the T; 0 inside.

    >>> distance_to_t(np.array([[0.0, -7.0], [18.0, 34.0], [0.0, 50.0]]))
    array([7., 3., 0.])
    """
    outside = np.maximum(np.maximum(BOXES[:, 0] - points[..., None, :], points[..., None, :] - BOXES[:, 1]), 0.0)
    nearest: Vectors = np.linalg.norm(outside, axis=-1).min(axis=-1)
    return nearest


def inward_normals() -> Vectors:
    """Unit vectors (8, 2) in the T's frame, from each edge of the outline into the T."""
    along = np.sign(np.roll(OUTLINE, -1, axis=0) - OUTLINE)
    return np.stack([-along[:, 1], along[:, 0]], axis=1)


#: (8, 2): corners of the way round the T, in its frame.
RING = OUTLINE - ROUND_THE_T * (inward_normals() + np.roll(inward_normals(), 1, axis=0))


def _contacts() -> tuple[Vectors, Vectors, NDArray[np.int64]]:
    """Contact points (N, 2), inward normals (N, 2) in the T's frame and edges (N,), where a finger has room to start."""
    points, normals, edges = [], [], []
    for edge, (begin, end) in enumerate(zip(OUTLINE, np.roll(OUTLINE, -1, axis=0))):
        count = round(float(np.linalg.norm(end - begin)) / CONTACT_SPACING)
        points.append(begin + (end - begin) * ((np.arange(count) + 0.5) / count)[:, None])
        normals.append(np.tile(inward_normals()[edge], (count, 1)))
        edges.append(np.full(count, edge))
    point, normal, number = np.concatenate(points), np.concatenate(normals), np.concatenate(edges)
    room = distance_to_t(point - normal * (FINGER_RADIUS + START_GAP)) > CLEARANCE
    return point[room], normal[room], number[room]


def _candidate_pushes() -> tuple[Vectors, Vectors, NDArray[np.int64]]:
    """Starts (N, 2), directions (N, 2) and edges (N,) of all pushes worth trying, in the T's frame."""
    point, normal, edge = _contacts()
    start = point - normal * (FINGER_RADIUS + START_GAP)
    directions = [rotated(normal, angle) for angle in PUSH_ANGLES]
    return np.tile(start, (len(PUSH_ANGLES), 1)), np.concatenate(directions), np.tile(edge, len(PUSH_ANGLES))


STARTS, DIRECTIONS, EDGES = _candidate_pushes()


def finger_travel(targets: Vectors) -> Vectors:
    """How far the finger has come (T,) at the end of each control step, from rest, towards targets (T,) on a straight line.

    The finger is kinematic (nothing it touches slows it down), so its way is known before the T is simulated.
    """
    position = velocity = 0.0
    travel = np.empty(len(targets))
    for step, target in enumerate(targets):
        for _ in range(TICKS):
            velocity += (STIFFNESS * (target - position) - DAMPING * velocity) * TICK
            position += velocity * TICK
        travel[step] = position
    return travel


def simulate_pushes(pose: Vectors, start: Vectors, direction: Vectors, travel: Vectors) -> Vectors:
    """Poses (T, N, 3) of the T after each control step of N pushes that all begin with the T at ``pose`` (3,).

    All N are simulated at once, side by side in one space, too far apart to meet, which is faster than one after the other.
    The space is new each time, because a physics engine remembers contacts, and a plan should depend on the situation alone.

    Args:
        pose: x, y, angle.
        start: (N, 2) where the fingers start.
        direction: (N, 2) unit vectors.
        travel: (T,) how far the fingers have come after each control step.
    """
    import pymunk

    benchmark = simulator()
    space = pymunk.Space()
    space.damping = 0.0  # as on the table: the T stops when it is no longer pushed
    offset = np.arange(len(start))[:, None] * np.array([2 * TABLE, 0.0])
    fingers, blocks = [], []
    for (shift, _), finger_start in zip(offset.tolist(), (start + offset).tolist()):
        corners = [(5 + shift, 5), (506 + shift, 5), (506 + shift, 506), (5 + shift, 506)]
        space.add(*(benchmark.add_segment(space, corners[i - 1], corners[i], 2) for i in range(4)))
        fingers.append(benchmark.add_circle(space, tuple(finger_start), FINGER_RADIUS))
        blocks.append(benchmark.add_tee(space, (float(pose[0]) + shift, float(pose[1])), float(pose[2]))[0])
    poses = np.empty((len(travel), len(start), 3))
    for step, advance in enumerate(np.diff(travel, prepend=0.0)):
        # the T follows the finger without momentum, so the mean velocity over the control step stands for its course
        for finger, velocity in zip(fingers, (direction * (advance / (TICKS * TICK))).tolist()):
            finger.velocity = tuple(velocity)
        for _ in range(TICKS):
            space.step(TICK)
        poses[step] = [(*block.position, block.angle) for block in blocks]
    poses[..., :2] -= offset
    return poses


@dataclass(frozen=True)
class Route:
    """A way for the finger.

    Attributes:
        waypoints: (2,) each, in pixels, without the point where the finger is, with its goal.
        length: in pixels.
        turn: +1 or -1, the sense in which it goes round the T; 0 for the straight line.
        is_open: whether it keeps clear of the T.
    """

    waypoints: list[Vectors]
    length: float
    turn: int
    is_open: bool


def routes_to(goal: Vectors, finger: Vectors, pose: Vectors) -> list[Route]:
    """The straight way from the finger (2,) to the goal (2,) if it is open, else the two ways round a T at ``pose`` (3,)."""
    here, there = rotated(finger - pose[:2], -pose[2]), rotated(goal - pose[:2], -pose[2])
    if _is_clear(here, there):
        return [Route([goal], float(np.linalg.norm(goal - finger)), 0, True)]
    return [_route_round(here, there, pose, turn) for turn in (1, -1)]


def _route_round(here: Vectors, there: Vectors, pose: Vectors, turn: int) -> Route:
    """From here (2,) to there (2,), both in the T's frame, along the ring round the T, cutting corners where that is clear."""
    leave, arrive = _nearest_on_ring(here), _nearest_on_ring(there)
    span = (turn * (arrive - leave)) % len(RING)
    # ring corners strictly between the two, in the order in which they are met
    first = math.floor(leave) + 1 if turn > 0 else math.ceil(leave) - 1
    corners = [first + turn * i for i in range(len(RING)) if turn * (first + turn * i - leave) < span]
    stops = np.stack(
        [_ring_point(leave), *(RING[corner % len(RING)] for corner in corners), _ring_point(arrive), there]
    )
    on_table = np.clip(rotated(stops, pose[2]) + pose[:2], BORDER, TABLE - BORDER)
    stops = rotated(on_table - pose[:2], -pose[2])
    # A finger that still touches the T may leave it by the shortest way
    is_open = _is_clear(here, stops[0]) or float(distance_to_t(here)) < CLEARANCE
    position, waypoints, length, next_stop = here, [], 0.0, 0
    while next_stop < len(stops):
        seen = [i for i in range(next_stop, len(stops)) if _is_clear(position, stops[i])]
        is_open = is_open and (bool(seen) or next_stop == 0)
        index = seen[-1] if seen else next_stop
        length += float(np.linalg.norm(stops[index] - position))
        position, next_stop = stops[index], index + 1
        waypoints.append(on_table[index])
    return Route(waypoints, length, turn, is_open)


def _is_clear(begin: Vectors, end: Vectors) -> bool:
    """Whether the finger can go straight from begin (2,) to end (2,), in the T's frame, without touching the T."""
    count = 2 + int(np.linalg.norm(end - begin) / 3.0)
    points: Vectors = begin + np.linspace(0.0, 1.0, count, dtype=np.float64)[:, None] * (end - begin)
    return bool((distance_to_t(points) >= CLEARANCE).all())


def _nearest_on_ring(point: Vectors) -> float:
    """The place on the ring nearest to a point (2,): number of the corner before it, plus the part of the edge."""
    edges = np.roll(RING, -1, axis=0) - RING
    part = np.clip(((point - RING) * edges).sum(axis=1) / (edges**2).sum(axis=1), 0.0, 1.0)
    nearest = int(np.linalg.norm(RING + part[:, None] * edges - point, axis=1).argmin())
    return float(nearest + part[nearest]) % len(RING)


def _ring_point(place: float) -> Vectors:
    """The point (2,) at a place on the ring."""
    corner, part = int(place), place % 1.0
    point: Vectors = (1.0 - part) * RING[corner] + part * RING[(corner + 1) % len(RING)]
    return point


class PushTExpert:
    """Demonstrates PushT, reproducibly: the same generator and the same initial state give the same demonstration.

    Args:
        random: decides between pushes and between ways round the T.
        settings: how it behaves.
    """

    def __init__(self, random: np.random.Generator, settings: ExpertSettings | None = None) -> None:
        self.random = random
        self.settings = settings or ExpertSettings()

    def demonstrate(self, env: PushTEnv, max_steps: int = 300) -> Demonstration:
        """Plays from the environment's present state until success or ``max_steps``; the episode ends with its last action."""
        observations, actions, success = [], [], False
        for target in self._targets(env):
            noise = self.settings.action_noise * self.random.standard_normal(2)
            action = np.clip(target + noise, BORDER, TABLE - BORDER).astype(np.float32)
            observations.append(env.observation())
            actions.append(action)
            *_, info = env.step(action)
            success = bool(info["success"])
            if success or len(actions) >= max_steps:
                break
        return Demonstration(
            np.stack([observation["agent_pos"] for observation in observations]),
            np.stack([observation["environment_state"] for observation in observations]),
            np.stack(actions),
            success,
        )

    def plan(self, finger: Vectors, pose: Vectors) -> tuple[Push, Route]:
        """A push, and the way to its start.

        Args:
            finger: (2,) its position.
            pose: (3,) the T's x, y, angle.
        """
        pushes = self._pushes(finger, pose)
        scores = np.array([push.gain for push in pushes])
        # Gumbel noise on the scores draws from their softmax, and orders all by preference: the first reachable push it is
        order = np.argsort(-(scores + self.settings.temperature * self.random.gumbel(size=len(scores))))
        for index in order:
            routes = [route for route in routes_to(pushes[index].start, finger, pose) if route.is_open]
            if routes:
                return pushes[index], self._choose(routes)
        # hemmed in between T and wall: go straight, and let the T give way
        start = pushes[order[0]].start
        return pushes[order[0]], Route([start], float(np.linalg.norm(start - finger)), 0, False)

    def _targets(self, env: PushTEnv) -> Iterator[Vectors]:
        """Actions (2,) without end: walk, push, step back, plan again."""
        while True:
            state = env.physics_state()
            push, route = self.plan(state[:2], state[4:7])
            target = state[:2]
            for waypoint in route.waypoints:
                while (distance := float(np.linalg.norm(waypoint - target))) > 1e-6:
                    target = target + (waypoint - target) * min(1.0, self.settings.speed / distance)
                    yield target
            for _ in range(2):  # the finger trails its target; the plan counts on a start at rest
                if np.linalg.norm(env.physics_state()[:2] - push.start) > 3.0:
                    yield push.start
            yield from push.targets
            yield env.physics_state()[:2] - RETREAT * push.direction

    def _pushes(self, finger: Vectors, pose: Vectors) -> list[Push]:
        """All pushes that start on the table, with their gains."""
        start = rotated(STARTS, pose[2]) + pose[:2]
        on_table = ((start > BORDER) & (start < TABLE - BORDER)).all(axis=1)
        start, direction, edge = start[on_table], rotated(DIRECTIONS, pose[2])[on_table], EDGES[on_table]
        error = float(pose_error(pose))
        pace = float(np.clip(PACE_PER_ERROR * error, *PACE_RANGE))
        advance = np.cumsum([RUN_UP * pace] * 2 + [pace] * (PUSH_STEPS - 2))
        errors = pose_error(simulate_pushes(pose, start, direction, finger_travel(advance)))
        steps = errors.argmin(axis=0) + 1
        gain = (error - errors.min(axis=0)) / max(error, SMALL_ERROR)
        gain -= WALK_PRICE * np.linalg.norm(start - finger, axis=1)
        return [
            Push(
                start[i],
                direction[i],
                start[i] + advance[: steps[i], None] * direction[i],
                int(edge[i]),
                float(gain[i]),
            )
            for i in range(len(start))
        ]

    def _choose(self, routes: list[Route]) -> Route:
        """The shorter way round, or now and then the longer one, unless it is much longer."""
        routes = sorted(routes, key=lambda route: route.length)
        longer = len(routes) > 1 and routes[1].length < LONGEST_DETOUR * routes[0].length
        return routes[1] if longer and self.random.random() < self.settings.longer_way else routes[0]
