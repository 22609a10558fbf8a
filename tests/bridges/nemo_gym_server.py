"""Serve a resources server of the package ``nemo-gym``, in its environment: ``NAME --port PORT``."""

import importlib
import sys
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import ServerClient

name, _, port = sys.argv[1:]
module = importlib.import_module(f"resources_servers.{name}.app")
own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
(server,) = (one for one in own if isinstance(one, type) and issubclass(one, SimpleResourcesServer))
configs = (
    one for one in own if isinstance(one, type) and issubclass(one, BaseResourcesServerConfig)
)
config = next(configs, BaseResourcesServerConfig)(
    host="127.0.0.1", port=int(port), entrypoint="", name=name
)
app = server(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
