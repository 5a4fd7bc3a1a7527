//! Where a socket is.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A TCP address as ZeroMQ writes it: `tcp://HOST:PORT`, with `*` for every address of the machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    host: String,
    port: u16,
}

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(5);

impl Address {
    /// The address with another port, so many above this one.
    ///
    /// # Errors
    /// When there is none.
    pub fn above(&self, ports: u16) -> Result<Self, String> {
        let port = self.port.checked_add(ports);
        let port = port.ok_or_else(|| format!("no port is {ports} above {}", self.port))?;
        Ok(Self { host: self.host.clone(), port })
    }

    pub(crate) fn connect(&self) -> std::io::Result<TcpStream> {
        let mut failure = std::io::Error::other("the name stands for no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                // Where nobody listens, a connection may be made with itself: the system chose the
                // port that is asked for as its own.
                Ok(stream) if stream.local_addr()? == address => {
                    failure = std::io::ErrorKind::ConnectionRefused.into();
                }
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Listens at the first of its addresses that can be had.
    pub(crate) fn listen(&self) -> std::io::Result<TcpListener> {
        let host = if self.host == "*" { "0.0.0.0" } else { &self.host };
        TcpListener::bind((host, self.port))
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{text:?} is not tcp://HOST:PORT: {why}");
        let rest = text.strip_prefix("tcp://").ok_or_else(|| bad("only tcp:// is supported"))?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        let port = port.parse().map_err(|_| bad("the port is no number below 65536"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        Ok(Self { host, port })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "tcp://[{}]:{}", self.host, self.port),
            false => write!(f, "tcp://{}:{}", self.host, self.port),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn addresses_read_as_they_are_written_and_others_are_refused() {
        for text in ["tcp://127.0.0.1:29550", "tcp://front-end:1", "tcp://[::1]:80", "tcp://*:5557"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "127.0.0.1:5", "ipc:///x", "tcp://h", "tcp://:5", "tcp://h:70000"] {
            assert!(text.parse::<Address>().unwrap_err().contains("tcp://HOST:PORT"), "{text}");
        }
        let last: Address = "tcp://h:65535".parse().unwrap();
        assert!(last.above(1).is_err());
    }
}
