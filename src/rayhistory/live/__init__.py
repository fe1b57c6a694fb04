"""Live clusters: discovery in Kubernetes, and a proxy for the dashboards of their heads."""
