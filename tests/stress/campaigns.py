"""All campaigns, by name, in the order in which they are run."""

from stress import archives, damage, disk, kills, not_numbers, odd_pictures, sample_order, signals, stalls, two_at_once

_MODULES = (odd_pictures, archives, two_at_once, disk, not_numbers, stalls, signals, sample_order, damage, kills)
CAMPAIGNS = {module.CAMPAIGN.name: module.CAMPAIGN for module in _MODULES}
