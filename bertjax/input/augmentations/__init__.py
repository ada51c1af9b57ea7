"""Changes of records that are drawn anew in every epoch: another spelling of the same thing."""
