//! Replays what a Redis server was asked and answered.

use super::Client;
use crate::resp::inline;

const RECORDED: &str = include_str!("redis-7.0.txt");

fn replies_are_those_of_redis(mut client: Client, reply_column: usize) {
    let mut compared = 0;
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let expected = columns
            .get(reply_column)
            .or(columns.last())
            .expect("a reply");
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        inline::split(columns[0].as_bytes(), &mut bytes, &mut spans).expect("quoted well");
        let args: Vec<_> = spans
            .iter()
            .map(|span| &bytes[span.start..span.start + span.len])
            .collect();
        assert_eq!(
            &client.call(&args),
            expected,
            "request {}: {}",
            compared + 1,
            columns[0]
        );
        compared += 1;
    }
    assert!(compared > 290, "{compared} requests were compared");
}

#[test]
fn recorded_requests_are_answered_as_by_redis_in_resp2() {
    replies_are_those_of_redis(Client::new(), 1);
}

#[test]
fn recorded_requests_are_answered_as_by_redis_in_resp3() {
    replies_are_those_of_redis(Client::resp3(), 2);
}
