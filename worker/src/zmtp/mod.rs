//! ZMTP 3, the protocol under ZeroMQ's sockets, as far as a worker and a publisher need it: TCP, no
//! security. Blocking sockets with threads of their own tell at once when a peer is gone, which a
//! worker has to know, and a step's tokens go out in one write.

mod address;
mod connection;
mod frames;

pub use address::Address;
pub(crate) use connection::{Connection, Receiver, Role, Sender};
pub(crate) use frames::{Decoder, Item};
#[cfg(test)]
pub(crate) use frames::{command, encode};

/// Why a peer can't be talked to.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// A connection could not be made, or broke.
    #[error("the connection failed: {0}")]
    Network(#[from] std::io::Error),
    /// The peer closed its end.
    #[error("the other side closed the connection")]
    Closed,
    /// What came is not ZMTP 3 without security, or not a socket that fits.
    #[error("the other side does not speak the protocol: {0}")]
    Protocol(String),
}
