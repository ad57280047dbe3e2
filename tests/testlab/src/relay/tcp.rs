//! Connections: each is accepted, dialled on, and copied both ways with the line's delays in between.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::faults::QUEUE_MAX;
use super::{Control, Direction};

/// Bytes that are read at once, and so the piece that is lost or delayed as one.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces on their way in one direction of one connection. When it is full, nothing more is read.
const PIECES_MAX: usize = 256;

pub async fn serve(
    listener: std::net::TcpListener,
    target: SocketAddr,
    control: &Arc<Control>,
) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => drop(connections.spawn(connection(client, target, control.clone()))),
                // A client that was gone before we looked, or too many open files: the next one may do better.
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

async fn connection(mut client: TcpStream, target: SocketAddr, control: Arc<Control>) -> Result<()> {
    client.set_nodelay(true)?;
    let mut state = control.state.subscribe();
    // The cut is looked at first: a line that is cut must not leave a dead connection in the target's queue.
    let server = tokio::select! {
        biased;
        _ = state.wait_for(|state| state.cut) => None,
        server = TcpStream::connect(target) => server.ok(),
    };
    let Some(mut server) = server else { return Ok(client.set_zero_linger()?) };
    server.set_nodelay(true)?;
    let whole = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            _ = state.wait_for(|state| state.cut) => false,
            copied = async { tokio::try_join!(
                copy(from_client, to_server, Direction::Up, &control),
                copy(from_server, to_client, Direction::Down, &control),
            ) } => copied.is_ok(),
        }
    };
    if !whole {
        // A connection that did not end well ends with a reset on both sides.
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}

/// A piece and when it arrives; an empty one is the end of the stream.
type Piece = (Instant, Vec<u8>);

async fn copy(from: ReadHalf<'_>, to: WriteHalf<'_>, direction: Direction, control: &Control) -> Result<()> {
    let (queue, arrivals) = mpsc::channel(PIECES_MAX);
    tokio::try_join!(take_in(from, queue, direction, control), give_out(to, arrivals, direction, control))?;
    Ok(())
}

async fn take_in(
    mut from: ReadHalf<'_>,
    queue: mpsc::Sender<Piece>,
    direction: Direction,
    control: &Control,
) -> Result<()> {
    let mut last = Instant::now();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        let now = Instant::now();
        let (arrives, behind) = {
            let mut line = control.line(direction);
            (line.piece(now, count), line.behind(now))
        };
        // Streams keep their order.
        last = last.max(arrives);
        if queue.send((last, buffer[..count].to_vec())).await.is_err() || count == 0 {
            return Ok(());
        }
        // The line's buffer is full: the sender has to wait, instead of seeing all of it gone at once.
        sleep(behind.saturating_sub(QUEUE_MAX)).await;
    }
}

async fn give_out(
    mut to: WriteHalf<'_>,
    mut arrivals: mpsc::Receiver<Piece>,
    direction: Direction,
    control: &Control,
) -> Result<()> {
    let mut state = control.state.subscribe();
    while let Some((at, bytes)) = arrivals.recv().await {
        sleep_until(at.into()).await;
        state.wait_for(|state| !state.black_hole(direction)).await?;
        if bytes.is_empty() {
            to.shutdown().await?;
            return Ok(());
        }
        to.write_all(&bytes).await?;
    }
    Ok(())
}
