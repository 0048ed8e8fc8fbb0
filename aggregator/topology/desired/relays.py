"""Say what a relay needs: a consumer of the FLEET that it reads, and leave to publish that region's samples. Pure.

Its key can be stolen as a site's can. The consumer is made by ``apply``: who may make one may let it deliver anywhere.
On both sides the relay has an account of its own, which takes only what it needs of the account with the streams; so
answers, and what it pulls, come to itself alone.
"""

from collections.abc import Iterator

from aggregator.topology.desired.grants import CONNECTIONS_OF_A_SITE, Account, Grant, inbox
from aggregator.topology.model import DesiredConsumer, Place
from aggregator.topology.settings import RelaySettings, TopologySettings
from shared.nats.jetstream_api import api_prefix
from shared.subjects import EVERY_REGISTRATION, ROOT, RecordType

FOR_A_RELAY = "muster.relay"
"""The consumer's metadata that names its relay: an agent makes one of the same name, where nobody else does."""

_ACK_WAIT = 3_600 * 1_000_000_000


def consumers_of_relays(topology: TopologySettings, region: str, place: Place, fleet: str) -> Iterator[DesiredConsumer]:
    """Give the consumers through which relays read a region's FLEET."""
    for relay in topology.relays:
        for block in relay.blocks if relay.region == region else ():
            name = _consumer(relay, block)
            config = {
                "durable_name": name,
                "filter_subject": EVERY_REGISTRATION,
                "ack_policy": "all",
                "ack_wait": _ACK_WAIT,
                "max_ack_pending": -1,
                "max_deliver": -1,
                "metadata": {FOR_A_RELAY: relay.name},
            }
            yield DesiredConsumer(place, fleet, name, config)


def account_below(relay: RelaySettings, fleet: str, lender: str) -> Account:
    """Let it read in the region, from an account that takes its own consumers' services of ``lender``."""
    api = api_prefix()
    asked = [f"{api}.STREAM.{action}.{fleet}" for action in ("INFO", "MSG.GET")]
    for block in relay.blocks:
        consumer = f"{fleet}.{_consumer(relay, block)}"
        asked += [f"{api}.CONSUMER.{action}.{consumer}" for action in ("INFO", "RESET", "MSG.NEXT")]
        asked.append(f"$JS.ACK.{consumer}.>")
    return _account(relay, tuple(asked), lender)


def account_above(relay: RelaySettings, lender: str) -> Account:
    """Let it publish registrations of the region that it reads, and nothing else."""
    return _account(relay, (f"{ROOT}.{relay.region}.*.*.{RecordType.REGISTRATION}",), lender)


def _account(relay: RelaySettings, asked: tuple[str, ...], lender: str) -> Account:
    return Account(
        name=f"RELAY_{relay.name}",
        grants=(Grant(f"{relay.name}-relay", asked, (inbox(relay.name),)),),
        jetstream=False,
        most_connections=CONNECTIONS_OF_A_SITE,
        takes=tuple((subject, lender) for subject in asked),
    )


def _consumer(relay: RelaySettings, block: str) -> str:
    return f"muster-{relay.name}-{block}"
