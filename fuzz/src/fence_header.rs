//! The header `Fencing-Token`, as any client of a fenced service can send it.
//!
//! Input: the lines of the header, with `\n` between them.

use fencepost_fence::Access;
use fencepost_fence::http::{FENCING_TOKEN, Presented, Refusal, header};
use http::{HeaderMap, HeaderValue};

/// Names that are asked for as written. The seeds use them.
const WRITTEN: [&str; 3] = ["wallet:8", "a", "/b/c"];

/// A header that can be read means what is written back. Several lines mean the same as one.
pub fn check(input: &[u8]) {
    let lines: Result<Vec<HeaderValue>, _> = input.split(|byte| *byte == b'\n').map(HeaderValue::from_bytes).collect();
    let Ok(lines) = lines else { return };
    let Ok(Some(presented)) = read(&lines) else { return };

    let joined = lines.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]);
    let joined = HeaderValue::from_bytes(&joined).expect("each part can stand in a header");
    assert_eq!(read(&[joined]), Ok(Some(presented.clone())), "several lines are one list");

    let mut access = presented.write("first");
    for name in WRITTEN {
        if let Ok(token) = presented.token_for(name) {
            access = access.and_write(name, token);
        }
    }
    let written = header(&access).expect("names that were read are names");
    let again = read(&[written]).expect("what we write can be read").expect("it is there");
    let shown = |access: &Access<_>| access.shown().map(<[_]>::to_vec);
    assert_eq!(shown(&again.write("first")), shown(&presented.write("first")), "the first token and what was read");
    for name in WRITTEN {
        assert_eq!(again.token_for(name), presented.token_for(name), "the token for {name}");
    }
}

fn read(lines: &[HeaderValue]) -> Result<Option<Presented>, Refusal> {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(FENCING_TOKEN, line.clone());
    }
    Presented::from_headers(&headers)
}
