"""Statistics on episode records: rates, paired differences, intervals and tests."""
