//! Replaces the broker addresses in a response, and leaves the rest of it unchanged.
//!
//! `read` parses as far as the last broker and records the position of each; `BrokerResponse::write` copies
//! up to there, with the new addresses, and appends the remaining bytes. Unreachable brokers are left out.
//! `limit` does the same to the list of API versions. Written by hand, for a few fields: the codec that
//! checks it in the tests allocates as much as a length on the wire announces, and would build every topic of
//! a large response only to write it again.

use std::net::SocketAddr;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use super::versions::{PendingRequest, RewrittenApi, offer};

/// A response that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the response of the Kafka broker: {0}")]
pub struct UnreadableResponse(&'static str);

type Read<T> = Result<T, UnreadableResponse>;

/// A broker in a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    pub host: String,
    pub port: i32,
    /// The range of its entry, and within it the range of host and port, which are adjacent.
    entry: Range<usize>,
    address: Range<usize>,
    /// The offsets of node id and error code, in responses that name a single coordinator and can report that
    /// there is none.
    coordinator: Option<(usize, usize)>,
}

/// A response, parsed as far as its brokers.
#[derive(Debug)]
pub struct BrokerResponse {
    frame: Bytes,
    is_compact: bool,
    /// The range of the count, for a list.
    count: Option<Range<usize>>,
    named: Vec<BrokerAddress>,
    end: usize,
}

/// More brokers than any cluster has; a response may have one coordinator for each requested group.
const NAMED_MAX: usize = 16_384;
/// A retriable error: there is no coordinator at this moment.
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
/// With this error the ApiVersions response has the oldest version, whatever was requested.
const UNSUPPORTED_VERSION: i16 = 35;
/// Length and correlation id.
const HEAD_BYTES: usize = 8;

/// Finds the brokers in a response. `frame` is all of it, with its length. None: such a response names none.
pub fn read(asked: PendingRequest, frame: &Bytes) -> Read<Option<BrokerResponse>> {
    let version = asked.version;
    let is_compact = match asked.api {
        RewrittenApi::ApiVersions => return Ok(None),
        RewrittenApi::Metadata => version >= 9,
        RewrittenApi::FindCoordinator => version >= 3,
        RewrittenApi::DescribeCluster => true,
    };
    let mut reader = Reader { bytes: frame, at: HEAD_BYTES, is_compact };
    reader.tags()?;
    let (count, named) = match asked.api {
        RewrittenApi::Metadata => metadata(&mut reader, version)?,
        RewrittenApi::FindCoordinator if version < 4 => (None, coordinator(&mut reader, version)?),
        RewrittenApi::FindCoordinator => coordinators(&mut reader)?,
        RewrittenApi::DescribeCluster | RewrittenApi::ApiVersions => cluster(&mut reader, version)?,
    };
    let end = reader.at;
    Ok(Some(BrokerResponse { frame: frame.clone(), is_compact, count, named, end }))
}

type Found = (Option<Range<usize>>, Vec<BrokerAddress>);
/// Host, port, and their range.
type Address = (String, i32, Range<usize>);

fn metadata(reader: &mut Reader<'_>, version: i16) -> Read<Found> {
    if version >= 3 {
        reader.skip(4)?; // throttle time
    }
    reader.list(|reader| {
        reader.skip(4)?; // node
        let found = reader.address()?;
        if version >= 1 {
            reader.text()?; // rack
        }
        reader.tags()?;
        Ok((found, None))
    })
}

fn cluster(reader: &mut Reader<'_>, version: i16) -> Read<Found> {
    reader.skip(4 + 2)?; // throttle time, error
    reader.text()?; // its message
    reader.skip(if version >= 1 { 1 } else { 0 })?; // brokers or controllers
    reader.text()?; // cluster
    reader.skip(4)?; // controller
    reader.list(|reader| {
        reader.skip(4)?; // node
        let found = reader.address()?;
        reader.text()?; // rack
        reader.skip(if version >= 2 { 1 } else { 0 })?; // fenced
        reader.tags()?;
        Ok((found, None))
    })
}

fn coordinators(reader: &mut Reader<'_>) -> Read<Found> {
    reader.skip(4)?; // throttle time
    reader.list(|reader| {
        reader.text()?; // group or transaction
        let node = reader.at;
        reader.skip(4)?;
        let found = reader.address()?;
        let error = reader.at;
        reader.skip(2)?;
        reader.text()?; // its message
        reader.tags()?;
        Ok((found, Some((node, error))))
    })
}

fn coordinator(reader: &mut Reader<'_>, version: i16) -> Read<Vec<BrokerAddress>> {
    reader.skip(if version >= 1 { 4 } else { 0 })?; // throttle time
    let error = reader.at;
    reader.skip(2)?;
    if version >= 1 {
        reader.text()?; // its message
    }
    let node = reader.at;
    reader.skip(4)?;
    let (host, port, address) = reader.address()?;
    let entry = address.clone();
    Ok(vec![BrokerAddress { host, port, entry, address, coordinator: Some((node, error)) }])
}

impl BrokerAddress {
    /// Tells whether it names a broker: a coordinator that was not found has neither host nor port.
    pub fn names_broker(&self) -> bool {
        !self.host.is_empty() && self.port >= 0
    }
}

impl BrokerResponse {
    pub fn named(&self) -> &[BrokerAddress] {
        &self.named
    }

    /// Returns the response with these addresses, one for each broker. None: the broker is unreachable.
    pub fn write(self, addresses: &[Option<SocketAddr>]) -> [Bytes; 2] {
        let mut out = BytesMut::with_capacity(self.end + 32 * self.named.len());
        let start = self.count.as_ref().map_or(0, |count| count.start);
        out.extend_from_slice(&self.frame[..start]);
        let mut at = start;
        let addresses = || addresses.iter().copied().chain(std::iter::repeat(None));
        if let Some(count) = &self.count {
            let stays = |(named, address): &(&BrokerAddress, Option<SocketAddr>)| named.stays(*address);
            let left = self.named.iter().zip(addresses()).filter(stays).count();
            put_count(&mut out, left, self.is_compact);
            at = count.end;
        }
        for (named, address) in self.named.iter().zip(addresses()) {
            if !named.stays(address) {
                out.extend_from_slice(&self.frame[at..named.entry.start]);
                at = named.entry.end;
                continue;
            }
            out.extend_from_slice(&self.frame[at..named.address.start]);
            at = named.address.end;
            let written = out.len();
            match address {
                Some(address) => self.put_address(&mut out, &address.ip().to_string(), address.port().into()),
                None if named.names_broker() => self.put_address(&mut out, "", -1),
                None => out.extend_from_slice(&self.frame[named.address.clone()]),
            }
            if let (None, true, Some((node, error))) = (address, named.names_broker(), named.coordinator) {
                // Both may precede the address, whose length may have changed, or follow it.
                put_at(&mut out, written - (named.address.start - node), &(-1_i32).to_be_bytes());
                if error < node {
                    put_at(
                        &mut out,
                        written - (named.address.start - error),
                        &COORDINATOR_NOT_AVAILABLE.to_be_bytes(),
                    );
                } else {
                    out.put_i16(COORDINATOR_NOT_AVAILABLE);
                    at = error + 2;
                }
            }
        }
        out.extend_from_slice(&self.frame[at..self.end]);
        let rest = self.frame.slice(self.end..);
        put_length(&mut out, rest.len());
        [out.freeze(), rest]
    }

    fn put_address(&self, out: &mut BytesMut, host: &str, port: i32) {
        match self.is_compact {
            true => put_varint(out, host.len() as u32 + 1),
            false => out.put_i16(host.len() as i16),
        }
        out.extend_from_slice(host.as_bytes());
        out.put_i32(port);
    }
}

impl BrokerAddress {
    /// A list omits unreachable brokers; a coordinator response reports that there is none.
    fn stays(&self, address: Option<SocketAddr>) -> bool {
        address.is_some() || self.coordinator.is_some()
    }
}

/// Returns the ApiVersions response with the versions that clients may use here, and without the features of
/// the cluster: one of them makes producers use versions that are not offered.
pub fn limit(version: i16, frame: &Bytes) -> Read<Bytes> {
    let mut reader = Reader { bytes: frame, at: HEAD_BYTES, is_compact: false };
    match reader.i16()? {
        // Some brokers mix versions here. A client that is offered no version asks again in the oldest one.
        UNSUPPORTED_VERSION => Ok(limit_list(0, frame, reader).unwrap_or_else(|_| {
            let mut out = BytesMut::from(&frame[..HEAD_BYTES + 2]);
            put_count(&mut out, 0, false);
            put_length(&mut out, 0);
            out.freeze()
        })),
        _ => limit_list(version, frame, reader),
    }
}

fn limit_list(version: i16, frame: &Bytes, mut reader: Reader<'_>) -> Read<Bytes> {
    reader.is_compact = version >= 3;
    let start = reader.at;
    let count = reader.count()?;
    let mut offered = BytesMut::new();
    let mut left = 0;
    for _ in 0..count {
        let (key, min, max) = (reader.i16()?, reader.i16()?, reader.i16()?);
        let tags = reader.at;
        reader.tags()?;
        if let Some((min, max)) = offer(key, min, max) {
            left += 1;
            [key, min, max].into_iter().for_each(|number| offered.put_i16(number));
            offered.extend_from_slice(&frame[tags..reader.at]);
        }
    }
    let mut out = BytesMut::from(&frame[..start]);
    put_count(&mut out, left, reader.is_compact);
    out.extend_from_slice(&offered);
    let throttle = reader.at;
    reader.skip(if version >= 1 { 4 } else { 0 })?;
    out.extend_from_slice(&frame[throttle..reader.at]);
    if reader.is_compact {
        put_tags_without(&mut out, &mut reader, FINALIZED_FEATURES)?;
    }
    out.extend_from_slice(&frame[reader.at..]);
    put_length(&mut out, 0);
    Ok(out.freeze())
}

/// The tags of the cluster's feature epoch and of its features.
const FINALIZED_FEATURES: Range<u32> = 1..3;

fn put_tags_without(out: &mut BytesMut, reader: &mut Reader<'_>, unwanted: Range<u32>) -> Read<()> {
    let (mut kept, mut left) = (BytesMut::new(), 0);
    for _ in 0..reader.varint()? {
        let start = reader.at;
        let tag = reader.varint()?;
        let bytes = reader.varint()?;
        reader.skip(bytes as usize)?;
        if !unwanted.contains(&tag) {
            kept.extend_from_slice(&reader.bytes[start..reader.at]);
            left += 1;
        }
    }
    put_varint(out, left);
    out.extend_from_slice(&kept);
    Ok(())
}

/// Writes the length, when the frame has `more` bytes after `out`.
fn put_length(out: &mut BytesMut, more: usize) {
    // The parsed bytes are bounded far below this, and an address adds less than a hundred bytes to each of a
    // bounded number.
    let length = i32::try_from(out.len() - 4 + more).unwrap_or(i32::MAX);
    put_at(out, 0, &length.to_be_bytes());
}

fn put_at(out: &mut BytesMut, at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_count(out: &mut BytesMut, count: usize, is_compact: bool) {
    match is_compact {
        true => put_varint(out, count as u32 + 1),
        false => out.put_i32(count as i32),
    }
}

fn put_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Parses a frame. Flexible versions (KIP-482) encode lengths as varints, and append tagged fields to every
/// structure.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_compact: bool,
}

impl Reader<'_> {
    fn take(&mut self, bytes: usize) -> Read<&[u8]> {
        let end = self.at.checked_add(bytes).ok_or(SHORT)?;
        let taken = self.bytes.get(self.at..end).ok_or(SHORT)?;
        self.at = end;
        Ok(taken)
    }

    fn skip(&mut self, bytes: usize) -> Read<()> {
        self.take(bytes).map(|_| ())
    }

    fn i16(&mut self) -> Read<i16> {
        self.take(2).map(|bytes| i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn i32(&mut self) -> Read<i32> {
        self.take(4).map(|bytes| i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn varint(&mut self) -> Read<u32> {
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            let part = u32::from(byte & 0x7f);
            if shift == 28 && part > 0xf {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(UnreadableResponse("a varint is too long"))
    }

    /// Null is treated as empty.
    fn text(&mut self) -> Read<&str> {
        let length = match self.is_compact {
            true => self.varint()?.saturating_sub(1) as usize,
            false => usize::try_from(self.i16()?).unwrap_or(0),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| UnreadableResponse("a string is not UTF-8"))
    }

    fn tags(&mut self) -> Read<()> {
        if self.is_compact {
            for _ in 0..self.varint()? {
                self.varint()?;
                let bytes = self.varint()?;
                self.skip(bytes as usize)?;
            }
        }
        Ok(())
    }

    /// Host and port.
    fn address(&mut self) -> Read<Address> {
        let start = self.at;
        let host = self.text()?.to_owned();
        let port = self.i32()?;
        Ok((host, port, start..self.at))
    }

    fn count(&mut self) -> Read<usize> {
        let count = match self.is_compact {
            true => self.varint()?.saturating_sub(1) as usize,
            false => usize::try_from(self.i32()?).unwrap_or(0),
        };
        // Every entry has ten bytes or more; those of ApiVersions have six.
        match count <= NAMED_MAX && count <= self.bytes.len() / 6 {
            true => Ok(count),
            false => Err(UnreadableResponse("a list is too long")),
        }
    }

    fn list(
        &mut self,
        mut entry: impl FnMut(&mut Self) -> Read<(Address, Option<(usize, usize)>)>,
    ) -> Read<Found> {
        let start = self.at;
        let count = self.count()?;
        let range = start..self.at;
        let mut named = Vec::new();
        for _ in 0..count {
            let start = self.at;
            let ((host, port, address), coordinator) = entry(self)?;
            named.push(BrokerAddress { host, port, entry: start..self.at, address, coordinator });
        }
        Ok((Some(range), named))
    }
}

const SHORT: UnreadableResponse = UnreadableResponse("it is truncated");

#[cfg(test)]
mod tests;
