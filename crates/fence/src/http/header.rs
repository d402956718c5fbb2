//! The header `Fencing-Token`: written from an access, and parsed back.
//!
//! Its format is a list of structured fields (RFC 9651). It is parsed strictly: an unknown part may be a condition, so nothing is
//! skipped. One point is wider than the standard: an integer there has at most fifteen digits, and a token may have sixteen.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use fencepost_core::{FencingToken, Name, bounds};

use super::refusal::Refusal;
use crate::access::{Access, Claims, Reads, Writes};
use crate::error::Error;
use crate::rules::Use;

/// The header of a request: the tokens of the locks that it was decided from.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The header of the answer to a stale request: the highest token that was seen.
pub const FENCING_TOKEN_HIGHEST: HeaderName = HeaderName::from_static("fencing-token-highest");

/// The header for a request that makes this access. It does not contain the first name: the request itself says that one.
///
/// ```
/// # use fencepost_fence::{Access, http};
/// # let (order, price) = ("42".parse().unwrap(), "17".parse().unwrap());
/// let access = Access::write("order:42", order).and_read("price:3", price);
/// assert_eq!(http::header(&access)?, "42, 17;read=\"price:3\"");
/// # Ok::<(), fencepost_fence::Error>(())
/// ```
///
/// # Errors
/// [`Error::BadName`] if one of the names is not valid.
pub fn header<Kind>(access: &Access<Kind>) -> Result<HeaderValue, Error> {
    let mut text = String::new();
    for one in access.shown()? {
        if text.is_empty() {
            text = one.token.0.to_string();
            continue;
        }
        let what = if one.used_to == Use::Read { "read" } else { "write" };
        text += &format!(", {};{what}={}", one.token.0, quoted(one.name.as_str()));
    }
    Ok(HeaderValue::try_from(text).expect("only visible ASCII was written"))
}

/// The tokens that a request has presented. The handler says which name the first token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    token: FencingToken,
    more: Vec<Named>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    token: FencingToken,
    name: Name,
    /// Whether the request writes under this name. Otherwise it has only read there.
    writes: bool,
}

impl Presented {
    /// The tokens in these headers; `None` if there are none.
    ///
    /// # Errors
    /// [`Refusal`] if the header cannot be parsed.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Presented>, Refusal> {
        // Several header lines are one list.
        let lines: Result<Vec<&str>, _> = headers.get_all(FENCING_TOKEN).iter().map(HeaderValue::to_str).collect();
        match lines {
            Ok(lines) if lines.is_empty() => Ok(None),
            Ok(lines) => parse(&lines.join(", ")).map(Some).ok_or_else(Refusal::malformed),
            Err(_) => Err(Refusal::malformed()),
        }
    }

    /// A write under this name, with all names that the request has read.
    pub fn write(&self, name: &str) -> Access<Writes> {
        self.and_reads(Access::write(name, self.token))
    }

    /// A claim of this name, with all names that the request has read.
    pub fn claim(&self, name: &str) -> Access<Claims> {
        self.and_reads(Access::claim(name, self.token))
    }

    /// A read under this name, with all names that the request has read.
    pub fn read(&self, name: &str) -> Access<Reads> {
        self.and_reads(Access::read(name, self.token.to_read()))
    }

    /// The first token, for the `once` of the service's store: `sqlite::once(&transaction, "billing", key, presented.token())`. It does
    /// not show what the request has read: admit [`Presented::write`] as well, if there may be such names.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The token for another name that the request writes, as in `42, 43;write="wallet:8"`. Add it to the access.
    ///
    /// # Errors
    /// [`Refusal`] if it was not presented.
    pub fn token_for(&self, name: &str) -> Result<FencingToken, Refusal> {
        let found = self.more.iter().find(|one| one.writes && one.name.as_str() == name);
        found.map(|one| one.token).ok_or_else(|| Refusal::missing_for(name))
    }

    fn and_reads<Kind>(&self, access: Access<Kind>) -> Access<Kind> {
        let read = self.more.iter().filter(|one| !one.writes);
        read.fold(access, |access, one| access.and_read(one.name.as_str(), one.token.to_read()))
    }
}

fn parse(text: &str) -> Option<Presented> {
    let blank = [' ', '\t'];
    let (token, mut rest) = number(text.trim_matches(blank))?;
    let mut more = Vec::new();
    while !rest.trim_start_matches(blank).is_empty() {
        let (token, named) = number(rest.trim_start_matches(blank).strip_prefix(',')?.trim_start_matches(blank))?;
        let named = named.strip_prefix(';')?.trim_start_matches(' ');
        let read = named.strip_prefix("read=");
        let (name, after) = unquoted(read.or_else(|| named.strip_prefix("write="))?)?;
        more.push(Named { token, name: Name::new(&name).ok()?, writes: read.is_none() });
        rest = after;
        if more.len() >= bounds::MULTI_LOCK_MAX {
            return None;
        }
    }
    Some(Presented { token, more })
}

fn number(text: &str) -> Option<(FencingToken, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(digits);
    Some((digits.parse().ok()?, rest))
}

/// A string of the standard; a display string if the name has characters that a string cannot contain.
fn quoted(name: &str) -> String {
    let visible = |byte: u8| (b' '..=b'~').contains(&byte);
    if name.bytes().all(visible) {
        return format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    }
    let mut text = "%\"".to_owned();
    for byte in name.bytes() {
        match byte {
            b'%' | b'"' => text += &format!("%{byte:02x}"),
            byte if visible(byte) => text.push(byte.into()),
            byte => text += &format!("%{byte:02x}"),
        }
    }
    text + "\""
}

/// Parses the string or display string at the beginning. Returns it and the rest of the text.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (display, text) = text.strip_prefix('%').map_or((false, text), |text| (true, text));
    let text = text.strip_prefix('"')?;
    let mut bytes = text.bytes().enumerate();
    let mut name = Vec::new();
    loop {
        match bytes.next()? {
            (at, b'"') => return Some((String::from_utf8(name).ok()?, &text[at + 1..])),
            (_, b'\\') if !display => {
                name.push(bytes.next().map(|(_, byte)| byte).filter(|byte| b"\"\\".contains(byte))?)
            }
            (_, b'%') if display => {
                let mut digit = || bytes.next().and_then(|(_, byte)| hex(byte));
                name.push(digit()? * 16 + digit()?);
            }
            (_, byte @ b' '..=b'~') => name.push(byte),
            _ => return None,
        }
    }
}

/// A hex digit. Only lower case, as the standard demands.
fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        number.to_string().parse().expect("a token")
    }

    fn of_lines(lines: &[&[u8]]) -> Result<Option<Presented>, Refusal> {
        let value = |line: &&[u8]| (FENCING_TOKEN, HeaderValue::from_bytes(line).expect("a header can carry it"));
        Presented::from_headers(&lines.iter().map(value).collect())
    }

    #[test]
    fn a_written_header_is_parsed_back() {
        let names = ["plain", "with \"quotes\" and \\", "50 %", "ü", "日本 \"%\" \\", "/a/b", "a;b,c=\"", "%\"fc\""];
        for (first, second) in names.iter().flat_map(|first| names.map(|second| (*first, second))) {
            let access =
                Access::write("wallet", token(3)).and_read(first, token(2).to_read()).and_write(second, token(4));
            let header = header(&access).expect("valid names");
            let presented = of_lines(&[header.as_bytes()]).expect("it can be read").expect("it is there");
            let back = presented.write("wallet").and_write(second, presented.token_for(second).expect("it is there"));
            assert_eq!(back.shown(), access.shown(), "{header:?}");
        }
    }

    #[test]
    fn several_lines_are_one_list_and_blanks_do_not_matter() {
        let expected = of_lines(&[b"42, 17;read=\"price\""]);
        assert!(matches!(&expected, Ok(Some(presented)) if presented.more.len() == 1));
        assert_eq!(of_lines(&[b"42", b"17;read=\"price\""]), expected);
        assert_eq!(of_lines(&[b" 42 ,\t17; read=%\"pric%65\" "]), expected);
        assert_eq!(of_lines(&[]), Ok(None));
        assert!(matches!(of_lines(&[b"9007199254740991"]), Ok(Some(_))), "the largest possible token");
    }

    #[test]
    fn anything_that_cannot_be_parsed_is_refused() {
        let long = format!("1{}", ", 2;read=\"x\"".repeat(bounds::MULTI_LOCK_MAX));
        let texts: [&[u8]; 32] = [
            b"",
            b" ",
            b",",
            b"abc",
            b"-1",
            b"+1",
            b"0",
            b"1.0",
            b"1e3",
            b"9007199254740992",
            b"99999999999999999999999",
            b"42 43",
            b"42, 43",
            b"42,",
            b",42",
            b"42;read=\"x\"",
            b"42, 17;read",
            b"42, 17;read=",
            b"42, 17;read=x",
            b"42, 17;read=\"x",
            b"42, 17;read=\"\"",
            b"42, 17;read=\"x\"y",
            b"42, 17;read=\"a\tb\"",
            b"42, 17;read=\"\\x\"",
            b"42, 17;read=%\"%FC\"",
            b"42, 17;read=%\"%c3\"",
            b"42, 17;read=%\"%c",
            b"42, 17;other=\"x\"",
            b"42, 17;read=\"x\";read=\"y\"",
            b"4\xc3\xbc",
            b"\"42\"",
            long.as_bytes(),
        ];
        for text in texts {
            assert!(of_lines(&[text]).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
        assert!(of_lines(&[b"42", b"43"]).is_err(), "two tokens for one name");
    }

    /// Random texts of a few pieces, most of them nonsense: each is refused, or writing the parsed value gives the same meaning.
    #[test]
    fn no_text_is_parsed_as_something_else() {
        let pieces =
            ["42", "7", ", ", ",", ";", "read=", "write=", "\"", "%", "\\", "x", "c3", "bc", " ", "\u{7f}", "ü"];
        let (mut number, mut readable) = (1_u64, 0);
        for _ in 0..200_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = 1 + (number >> 33) as u32 % 12;
            let tail = (0..length).map(|at| pieces[number.rotate_right(5 * at) as usize % pieces.len()]);
            let text = ["42, 17;read=\""].into_iter().chain(tail).collect::<String>();
            let Some(presented) = parse(&text) else { continue };
            readable += 1;
            let mut access = presented.write("first");
            for one in presented.more.iter().filter(|one| one.writes) {
                access = access.and_write(one.name.as_str(), one.token);
            }
            let again = header(&access).expect("valid names");
            let again = parse(again.to_str().expect("visible")).expect("it can be read");
            assert_eq!(again.write("first").shown(), presented.write("first").shown(), "{text}");
        }
        assert!(readable > 1_000, "some texts can be parsed: {readable}");
    }
}
