"""One server for the robots people already have: several protocols, one model, K traded against the robots that wait."""
