"""IP networks in settings: exact addresses and CIDR ranges."""

import ipaddress
from collections.abc import Iterable

from rayhistory.errors import InvalidSetting

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Networks:
    """A list of networks; `flag` names the setting in error messages."""

    def __init__(self, addresses: Iterable[str], flag: str) -> None:
        try:
            self._networks = [ipaddress.ip_network(address, strict=False) for address in addresses]
        except ValueError as error:
            raise InvalidSetting(f"{flag}: {error}") from None

    def __contains__(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)

    def ranges(self) -> list[str]:
        """Return the networks with more than one address."""
        return [str(network) for network in self._networks if network.num_addresses > 1]


def parse_ip(text: str) -> IpAddress | None:
    """Parse an IP address; None if the text is not one. An IPv4-mapped IPv6 address counts as IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
