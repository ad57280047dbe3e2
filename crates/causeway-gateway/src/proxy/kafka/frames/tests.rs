//! Frames in chunks of any size: passed bytes are unchanged, held frames are complete.

use proptest::prelude::*;

use super::*;

fn request(key: i16, version: i16, number: i32, body: &[u8]) -> Vec<u8> {
    let length = (8 + body.len()) as i32;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend([key.to_be_bytes(), version.to_be_bytes()].concat());
    frame.extend(number.to_be_bytes());
    frame.extend(body);
    frame
}

fn answer(number: i32, body: &[u8]) -> Vec<u8> {
    let length = (4 + body.len()) as i32;
    [&length.to_be_bytes()[..], &number.to_be_bytes(), body].concat()
}

/// Sends these bytes, `step` at a time.
fn ask(
    requests: &mut RequestScanner,
    state: &mut KafkaConversation,
    bytes: &[u8],
    step: usize,
) -> Result<Vec<u8>, KafkaFrameError> {
    let mut passed = Vec::new();
    for chunk in bytes.chunks(step) {
        requests.take(Bytes::copy_from_slice(chunk), state, |piece| passed.extend_from_slice(&piece))?;
    }
    Ok(passed)
}

/// The output with held frames in their place, and the held frames alone.
type Received = (Vec<u8>, Vec<(PendingRequest, Bytes)>);

fn receive(state: &mut KafkaConversation, bytes: &[u8], step: usize) -> Result<Received, KafkaFrameError> {
    let (mut all, mut held) = (Vec::new(), Vec::new());
    let mut answers = ResponseScanner::default();
    for chunk in bytes.chunks(step) {
        answers.take(Bytes::copy_from_slice(chunk), state, |piece| match piece {
            FramePiece::Pass(bytes) => all.extend_from_slice(&bytes),
            FramePiece::Held(asked, frame) => {
                all.extend_from_slice(&frame);
                held.push((asked, frame));
            }
        })?;
    }
    Ok((all, held))
}

#[test]
fn answers_to_watched_questions_are_held_and_no_others() {
    let sent = [
        request(18, 3, 1, b"versions"),
        request(3, 12, 2, b"metadata"),
        request(0, 9, 3, &[7; 5000]),
        request(10, 4, 4, b""),
    ]
    .concat();
    let responses = [
        answer(1, b"v"),
        answer(2, &[8; 3000]),
        answer(77, b"nobody asked"),
        answer(3, b"produced"),
        answer(4, b""),
    ]
    .concat();
    for step in [1, 3, 7, 11, 12, 13, 1000, 100_000] {
        let mut state = KafkaConversation::default();
        assert_eq!(ask(&mut RequestScanner::default(), &mut state, &sent, step).unwrap(), sent, "{step}");
        let (all, held) = receive(&mut state, &responses, step).unwrap();
        assert_eq!(all, responses, "{step}");
        let asked: Vec<_> =
            held.iter().map(|(asked, frame)| (asked.api, asked.version, frame.len())).collect();
        assert_eq!(
            asked,
            [
                (RewrittenApi::ApiVersions, 3, 9),
                (RewrittenApi::Metadata, 12, 3008),
                (RewrittenApi::FindCoordinator, 4, 8)
            ],
            "{step}"
        );
        assert!(state.waiting.is_empty());
    }
}

#[test]
fn what_passes_is_not_copied() {
    let mut state = KafkaConversation::default();
    let chunk = Bytes::from([request(0, 9, 1, &[1; 100]), request(1, 12, 2, &[2; 100])].concat());
    let mut pieces = Vec::new();
    RequestScanner::default().take(chunk.clone(), &mut state, |piece| pieces.push(piece)).unwrap();
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].as_ptr(), chunk.as_ptr());
    // Fifty megabytes of records are never held.
    let head = [&(50_000_000_i32).to_be_bytes()[..], &2_i32.to_be_bytes()].concat();
    let mut answers = ResponseScanner::default();
    let mut passed = 0;
    for chunk in [Bytes::from(head), Bytes::from(vec![0; 60_000])] {
        let bytes = chunk.len();
        answers
            .take(chunk, &mut state, |piece| match piece {
                FramePiece::Pass(bytes) => passed += bytes.len(),
                FramePiece::Held(..) => panic!("held"),
            })
            .unwrap();
        assert!(answers.scanner.held.is_none() && bytes > 0);
    }
    assert_eq!(passed, 60_008);
}

#[test]
fn a_question_for_versions_in_an_unknown_form_is_asked_so_that_the_oldest_answers() {
    for step in [1, 100] {
        let mut state = KafkaConversation::default();
        let sent = request(18, 9, 5, b"from the future");
        let passed = ask(&mut RequestScanner::default(), &mut state, &sent, step).unwrap();
        assert_eq!(passed, request(18, NO_SUCH_VERSION, 5, b"from the future"));
        let (_, held) = receive(&mut state, &answer(5, b"\0\x23"), step).unwrap();
        assert_eq!(held[0].0, PendingRequest { api: RewrittenApi::ApiVersions, version: 0 });
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |bytes: &[u8]| {
        ask(&mut RequestScanner::default(), &mut KafkaConversation::default(), bytes, 5).unwrap_err()
    };
    assert_eq!(refused(&request(3, 14, 1, b"")), KafkaFrameError::Version { key: 3, version: 14 });
    assert_eq!(refused(&(-5_i32).to_be_bytes().repeat(3)), KafkaFrameError::Length(-5));
    assert_eq!(refused(&7_i32.to_be_bytes().repeat(3)), KafkaFrameError::Length(7));
    let many: Vec<u8> = (0..=WAITING_MAX as i32).flat_map(|number| request(3, 0, number, b"")).collect();
    assert_eq!(refused(&many), KafkaFrameError::TooManyRequests);
    let mut state = KafkaConversation::default();
    ask(&mut RequestScanner::default(), &mut state, &request(3, 0, 1, b""), 5).unwrap();
    let long = [&i32::MAX.to_be_bytes()[..], &1_i32.to_be_bytes()].concat();
    assert_eq!(receive(&mut state, &long, 5).unwrap_err(), KafkaFrameError::TooLong(i32::MAX as usize - 4));
}

#[test]
fn tls_passes_unread() {
    let mut state = KafkaConversation::default();
    let hello = [&[TLS_HANDSHAKE, 3, 1][..], &[0; 600]].concat();
    assert_eq!(ask(&mut RequestScanner::default(), &mut state, &hello, 1).unwrap(), hello);
    let (all, held) = receive(&mut state, &hello, 7).unwrap();
    assert_eq!((all, held.len()), (hello, 0));
}

proptest! {
    /// The output does not depend on the chunk boundaries.
    #[test]
    fn cuts_do_not_matter(
        bodies in prop::collection::vec((0_i16..20, 0_i16..10, prop::collection::vec(any::<u8>(), 0..40)), 1..20),
        cuts in prop::collection::vec(1_usize..30, 1..20),
    ) {
        let sent: Vec<u8> = bodies.iter().zip(0..).flat_map(|((key, version, body), number)| {
            // The first SASL handshake is refused, in its oldest version.
            request(if *key == 17 { 2 } else { *key }, (*version).min(4), number, body)
        }).collect();
        let responses: Vec<u8> = bodies.iter().zip(0..).flat_map(|((_, _, body), number)| answer(number, body)).collect();
        let (mut state, mut whole) = (KafkaConversation::default(), KafkaConversation::default());
        let mut requests = RequestScanner::default();
        let (mut passed, mut rest, mut at) = (Vec::new(), &sent[..], 0);
        while !rest.is_empty() {
            let (chunk, more) = rest.split_at(cuts[at % cuts.len()].min(rest.len()));
            requests.take(Bytes::copy_from_slice(chunk), &mut state, |piece| passed.extend_from_slice(&piece)).unwrap();
            (rest, at) = (more, at + 1);
        }
        prop_assert_eq!(&passed, &sent);
        prop_assert_eq!(ask(&mut RequestScanner::default(), &mut whole, &sent, sent.len()).unwrap(), sent);
        let (one, other) = (receive(&mut state, &responses, cuts[0]).unwrap(), receive(&mut whole, &responses, responses.len()).unwrap());
        prop_assert_eq!(&one.0, &responses);
        prop_assert_eq!(one, other);
    }

    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1_usize..50) {
        let mut state = KafkaConversation::default();
        let _ = ask(&mut RequestScanner::default(), &mut state, &bytes, step);
        let _ = receive(&mut state, &bytes, step);
    }
}
