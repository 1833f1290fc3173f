"""Names of points in figures lie in free space."""

import itertools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from keystone_robotics.report.style import new_figure
from keystone_study.report.labels import Label, place_labels


def test_names_cover_neither_points_nor_each_other():
    random = np.random.default_rng(0)
    points = random.uniform(0, 1, (30, 2))
    figure, (ax,) = new_figure(5, 4)
    ax.scatter(*points.T)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    labels = [Label([tuple(one)], f"point {number}", "black", number < 3) for number, one in enumerate(points[:5])]
    place_labels(figure, ax, [*labels, Label([tuple(one) for one in points[5:]], "any", "black")], points, points[:2])
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in ax.texts]
    assert len(boxes) == 6
    assert not any(box.contains(*place) for box in boxes for place in ax.transData.transform(points))
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    frame = ax.get_window_extent(renderer)
    assert all(frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1) for box in boxes)
