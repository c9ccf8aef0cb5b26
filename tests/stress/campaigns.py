"""All campaigns, by name, in the order in which they are run."""

from stress import damage, kills, sample_order, two_at_once

CAMPAIGNS = {module.CAMPAIGN.name: module.CAMPAIGN for module in (two_at_once, sample_order, damage, kills)}
