"""The service: REST, server-sent events and the live page over one ad-hoc engine. Needs `streamjoin[service]`."""

from streamjoin.service.app import create_app
from streamjoin.service.config import Limits, ServiceConfig
from streamjoin.service.config_file import read_config

__all__ = ["Limits", "ServiceConfig", "create_app", "read_config"]
