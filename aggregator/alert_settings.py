"""Say how incidents, and who is told of them, stand in ``aggregator.toml``."""

from typing import Annotated

from msgspec import Meta

from shared.settings import Duration, Settings


class IncidentSettings(Settings, frozen=True):
    """When an incident begins and when it is over."""

    open_after: Annotated[
        Duration, Meta(description="how long, in known time, enough senders are stale before it begins")
    ] = Duration(30_000_000)
    unknown_after: Annotated[
        Duration, Meta(description="how long a site, region or the hub is unknown before it begins")
    ] = Duration(60_000_000)
    close_after: Annotated[Duration, Meta(description="for how long its cause must be gone before it is over")] = (
        Duration(180_000_000)
    )
    least_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="the share of a site's senders that must be stale; below half of it, the cause is gone",
        ),
    ] = 0.05
    least_senders: Annotated[
        int, Meta(ge=1, description="the number of a site's senders that must be stale, where the share is fewer")
    ] = 1


class AlertmanagerSettings(Settings, frozen=True, tag_field="kind", tag="alertmanager"):
    """An Alertmanager, which is told through its API v2."""

    url: Annotated[
        str, Meta(description="its address, such as http://127.0.0.1:9093; one of these for each of a cluster")
    ]
    resend_every: Annotated[Duration, Meta(description="how often open incidents are sent again")] = Duration(
        60_000_000
    )


class WebhookSettings(Settings, frozen=True, tag_field="kind", tag="webhook"):
    """An address that is posted one JSON object for each incident that begins or ends."""

    url: Annotated[str, Meta(description="where to post")]


class CommandSettings(Settings, frozen=True, tag_field="kind", tag="command"):
    """A program that is started for each incident that begins or ends, with a JSON object on its standard input."""

    command: Annotated[
        tuple[str, ...], Meta(min_length=1, description="the program and its arguments; no shell reads them")
    ]


class HeartbeatSettings(Settings, frozen=True, tag_field="kind", tag="heartbeat"):
    """An address that is asked from time to time while all is well here: a dead man's switch."""

    url: Annotated[str, Meta(description="what to ask")]
    every: Annotated[Duration, Meta(description="how often")] = Duration(60_000_000)


AlertSettings = AlertmanagerSettings | WebhookSettings | CommandSettings | HeartbeatSettings
