"""Find out whom a person means, by the regions and sites that the topology names. Pure."""

import difflib
from collections.abc import Iterable

from aggregator.policy.book import Refused
from aggregator.topology.settings import TopologySettings
from shared.identifiers import InvalidIdentifier, validated_token
from shared.policy import Scope


def scope_of(topology: TopologySettings, region: str, site: str, block: str) -> Scope:
    """Give the scope; raise Refused.

    The region of a site that is in the file need not be said. Where a region's sites are not in the file, any name is
    taken.
    """
    if not region and not site:
        raise Refused("say for whom: --region, or --site, or --site and --block")
    if block and not site:
        raise Refused("a block is one of a site: say --site too")
    named = {each.name: each for each in topology.sites}
    if site in named:
        if region not in ("", named[site].region):
            raise Refused(f"site {site} is in region {named[site].region}, not in {region}")
        region = named[site].region
        _check("block", block, named[site].blocks)
    elif site and (not region or any(each.region == region for each in topology.sites)):
        _check("site", site, named)
    _check("region", region, [each.name for each in topology.regions])
    try:
        for what, name in (("site", site), ("block", block)):
            validated_token(name or "none", what)
    except InvalidIdentifier as error:
        raise Refused(str(error)) from error
    return Scope(region, site, block)


def _check(what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name and name not in names:
        nearest = difflib.get_close_matches(name, names, n=1)
        meant = f", did you mean {nearest[0]}?" if nearest else f": {', '.join(names)}" if names else ""
        raise Refused(f"{what} {name!r} is not in the topology{meant}")
