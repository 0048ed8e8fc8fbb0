"""Describe what one user of the servers may do. Pure."""

import msgspec

CLIENTS = "STANDARD"


CONNECTIONS_OF_A_SITE = 16
"""In its region: of an agent or two, of their doctors, and of what a cut link left open until it is missed."""


class Grant(msgspec.Struct, frozen=True):
    """What one user may publish, and subscribe to; by which kind of connection. ``key`` is the name of its key."""

    key: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    connection: str = CLIENTS


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Users who meet nobody else. ``lends``: subjects, and who may ask there; ``takes``: subjects, and who answers.

    ``sends``: subjects, and who hears what is published there; ``hears``: subjects, and who sends there.
    ``mapped``: subjects that stand for others.
    ``most_connections`` bounds how many they may have open at once, 0 leaves that to the server.
    """

    name: str
    grants: tuple[Grant, ...] = ()
    jetstream: bool = True
    most_connections: int = 0
    lends: tuple[tuple[str, str], ...] = ()
    takes: tuple[tuple[str, str], ...] = ()
    sends: tuple[tuple[str, str], ...] = ()
    hears: tuple[tuple[str, str], ...] = ()
    mapped: tuple[tuple[str, str], ...] = ()

    def beside(self, *others: "Account") -> "Account":
        """Let it lend what the others take of it, take what they lend it, and so on."""

        def met(mine: str, theirs: str) -> tuple[tuple[str, str], ...]:
            found = [
                (subject, each.name) for each in others for subject, of in getattr(each, theirs) if of == self.name
            ]
            return tuple(dict.fromkeys((*getattr(self, mine), *found)))

        return msgspec.structs.replace(
            self,
            lends=met("lends", "takes"),
            takes=met("takes", "lends"),
            sends=met("sends", "hears"),
            hears=met("hears", "sends"),
        )


def inbox(name: str) -> str:
    """Where answers come to a user, and to nobody else."""
    return f"_INBOX_{name}.>"
