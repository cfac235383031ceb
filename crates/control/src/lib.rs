//! The control plane: registry, device safety, daemon, control protocol.
