"""Find the specification that is best for one policy in one environment: race, then confirm. Needs the extra ``eval``."""
