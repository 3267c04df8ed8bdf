"""One suite over every gRPC front door, through real clients and the real daemon."""
