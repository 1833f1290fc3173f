"""From stored episodes to statements with intervals."""
