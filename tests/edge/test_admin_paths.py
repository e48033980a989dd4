"""Every path of the admin port is in the reference."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbudget.edge.control.admin import admin_app
from kvbudget.edge.control.sign_in import PATHS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_every_path_of_the_admin_port_is_in_the_reference(play: Callable[..., None]) -> None:
    async def scene(stand: Any) -> None:
        service = stand.service
        app = admin_app(service.reception, service.gateway.now_ns, service._reload, service.demand, service.past)
        text = REFERENCE.read_text(encoding="utf-8").partition("## Paths of the admin port")[2]
        told = set(re.findall(r"`(/[a-z0-9/]*)", text)) | {"/v1/instances/{name}/drain", "/v1/instances/{name}/resume"}
        paths = {str(getattr(route, "path", "")) for route in app.routes} | PATHS
        paths -= {"/static/{name}"}  # parts of the pages
        assert {path.removesuffix("/{name}") for path in paths} - told == set()
        assert "`/resume`" in text

    play(scene)
