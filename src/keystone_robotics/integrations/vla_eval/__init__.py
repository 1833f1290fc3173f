"""KeyStone in vla-eval's model servers: any server class with one more argument, any server script served with it."""

from keystone_robotics.integrations.vla_eval.launch import serve_script
from keystone_robotics.integrations.vla_eval.server import wrap_server

__all__ = ["serve_script", "wrap_server"]
