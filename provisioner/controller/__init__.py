"""The durable life of a job: ask, plan, claim, watch, recover, release."""
