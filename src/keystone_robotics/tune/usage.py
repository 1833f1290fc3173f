"""How a specification is used with LeRobot, vla-eval, openpi and Python."""

from __future__ import annotations

import json
from typing import Any

from keystone_robotics.spec import Spec
from keystone_robotics.tune.space import POLICY_AS_IT_IS


def usage(spec: Spec) -> dict[str, Any]:
    """By framework, what to write; ``notes`` says what a framework decides itself.

    >>> usage(Spec.parse("first:steps=2,execute=4"))["lerobot"]
    "--policy.keystone.spec='first:steps=2,execute=4' --policy.n_action_steps=4"
    """
    if spec == POLICY_AS_IT_IS:
        return {"spec": str(spec), "notes": ["the policy as it is: leave KeyStone out"]}
    text, notes = str(spec), list[str]()
    most = spec.most_steps
    execute = "" if most is None else f" --policy.n_action_steps={most}"
    if spec.execute_range is not None:
        notes.append(
            f"execute={spec.execute}: KeyStone cuts LeRobot's queue after the steps that the candidates agree on, "
            "n_action_steps at most; clients of openpi and vla-eval must execute no more than "
            '`agreed_steps` under "keystone" of each reply'
        )
    elif most is not None:
        notes.append(
            f"execute={spec.execute} is what distances count; how many steps run is the framework's: LeRobot "
            f"n_action_steps={most}, vla-eval `chunk_size: {most}` of the server, openpi the client's steps"
        )
    return {
        "spec": text,
        "lerobot": f"--policy.keystone.spec='{text}'{execute}",
        "environment": f"KEYSTONE_SPEC='{text}'",
        "vla_eval": {"args": {"keystone": spec.as_dict()}},
        "serve": f"keystone serve POLICY --spec '{text}'",
        "python": f"keystone.attach(policy, {text!r})",
        "notes": notes,
    }


def as_yaml(spec: Spec, headline: str) -> str:
    """`usage` as a YAML file; the values are written as JSON, which YAML reads."""
    lines = [f"# {line}" for line in headline.splitlines()]
    for name, value in usage(spec).items():
        lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
