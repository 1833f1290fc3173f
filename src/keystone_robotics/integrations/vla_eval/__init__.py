"""KeyStone in vla-eval's model servers: wraps any server class, or serves any server script with it."""

from keystone_robotics.integrations.vla_eval.launch import serve_script
from keystone_robotics.integrations.vla_eval.server import wrap_server

__all__ = ["serve_script", "wrap_server"]
