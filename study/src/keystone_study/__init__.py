"""The study behind KeyStone: experts, training, small trained policies, workloads, `reproduce`, the demo, the roofline."""
