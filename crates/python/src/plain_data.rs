//! Plain data as MessagePack, for functions and actors in other languages. Lists and tuples are
//! arrays; dicts and dataclasses are maps. A reference that is an argument becomes an extension
//! that stands for its value, as in the codec of the crate `marline`.

use crate::failure::to_python;
use crate::pickle;
use crate::reference::ObjectRef;
use bytes::Bytes;
use marline_runtime::core::error::Error;
use marline_runtime::core::payload::{Payload, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use rmp::{Marker, decode::read_marker, encode};

/// The extension type that stands for the value of a reference; its data is the value's index.
const REFERENCE: i8 = 1;
/// The deepest nesting of data. Reading and writing recurse once for each level.
const MAX_DEPTH: usize = 200;

/// Encodes a value.
pub fn dump(value: &Bound<'_, PyAny>) -> PyResult<Payload> {
    let mut bytes = Vec::new();
    write(&mut bytes, value, 0)?;
    Ok(Payload::message_pack(bytes))
}

/// Encodes arguments. Returns also the references among them, whose values travel beside the
/// arguments.
pub fn dump_arguments<'py>(
    args: &Bound<'py, PyTuple>,
) -> PyResult<(Payload, Vec<Bound<'py, ObjectRef>>)> {
    let (mut bytes, mut references) = (Vec::new(), Vec::new());
    write_len(&mut bytes, args.len(), args, encode::write_array_len)?;
    for arg in args.iter() {
        match arg.cast_into_exact::<ObjectRef>() {
            Ok(reference) => {
                encode::write_ext_meta(&mut bytes, 4, REFERENCE).expect("memory takes everything");
                bytes.extend((references.len() as u32).to_be_bytes());
                references.push(reference);
            }
            Err(error) => write(&mut bytes, &error.into_inner(), 0)?,
        }
    }
    Ok((Payload::message_pack(bytes), references))
}

fn write(to: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
    const MEMORY: &str = "memory takes everything";
    if depth > MAX_DEPTH {
        return Err(invalid(
            value.py(),
            format!("the data is deeper than {MAX_DEPTH} (MAX_DEPTH)"),
        ));
    }
    if value.is_none() {
        encode::write_nil(to).expect(MEMORY);
    } else if let Ok(value) = value.cast::<PyBool>() {
        encode::write_bool(to, value.is_true()).expect(MEMORY);
    } else if let Ok(value) = value.cast::<PyInt>() {
        write_int(to, value)?;
    } else if let Ok(value) = value.cast::<PyFloat>() {
        encode::write_f64(to, value.value()).expect(MEMORY);
    } else if let Ok(value) = value.cast::<PyString>() {
        encode::write_str(to, value.to_str()?).expect(MEMORY);
    } else if let Ok(value) = value.cast::<PyBytes>() {
        encode::write_bin(to, value.as_bytes()).expect(MEMORY);
    } else if let Ok(value) = value.cast::<PyByteArray>() {
        encode::write_bin(to, &value.to_vec()).expect(MEMORY);
    } else if let Ok(list) = value.cast::<PyList>() {
        write_len(to, list.len(), value, encode::write_array_len)?;
        list.iter().try_for_each(|item| write(to, &item, depth + 1))?;
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        write_len(to, tuple.len(), value, encode::write_array_len)?;
        tuple.iter().try_for_each(|item| write(to, &item, depth + 1))?;
    } else if let Ok(map) = value.cast::<PyDict>() {
        write_len(to, map.len(), value, encode::write_map_len)?;
        for (key, item) in map.iter() {
            write(to, &key, depth + 1)?;
            write(to, &item, depth + 1)?;
        }
    } else {
        write_dataclass(to, value, depth)?;
    }
    Ok(())
}

fn write_int(to: &mut Vec<u8>, value: &Bound<'_, PyInt>) -> PyResult<()> {
    if let Ok(value) = value.extract::<i64>() {
        encode::write_sint(to, value).expect("memory takes everything");
    } else if let Ok(value) = value.extract::<u64>() {
        encode::write_uint(to, value).expect("memory takes everything");
    } else {
        let words =
            format!("{value} has more than 64 bits: plain data has integers of 64 bits at most");
        return Err(invalid(value.py(), words));
    }
    Ok(())
}

fn write_len<E: std::fmt::Debug>(
    to: &mut Vec<u8>,
    len: usize,
    of: &Bound<'_, PyAny>,
    write: impl FnOnce(&mut Vec<u8>, u32) -> Result<Marker, E>,
) -> PyResult<()> {
    let len = u32::try_from(len).map_err(|_| too_many_parts(of))?;
    write(to, len).expect("memory takes everything");
    Ok(())
}

/// Writes a dataclass as a map with the names of its fields. Rejects a value of any other type: the
/// caller has already tried all other types of plain data.
fn write_dataclass(to: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
    let py = value.py();
    let is_type = value.is_instance_of::<PyType>();
    if is_type || !value.hasattr("__dataclass_fields__")? {
        let class = value.get_type().fully_qualified_name()?;
        return Err(PyTypeError::new_err(format!(
            "a {class} is not plain data, and only plain data crosses languages: None, bool, int, float, str, \
             bytes, lists, tuples, dicts and dataclasses of those"
        )));
    }
    let fields = py.import("dataclasses")?.call_method1("fields", (value,))?;
    let fields = fields.cast_into::<PyTuple>()?;
    write_len(to, fields.len(), value, encode::write_map_len)?;
    for field in fields.iter() {
        let name = field.getattr("name")?.cast_into::<PyString>()?;
        write(to, &name, depth + 1)?;
        write(to, &value.getattr(&name)?, depth + 1)?;
    }
    Ok(())
}

/// Decodes a value.
pub fn load<'py>(py: Python<'py>, bytes: &Bytes) -> PyResult<Bound<'py, PyAny>> {
    let mut reader = Reader { py, rest: bytes };
    let value = reader.value(0)?;
    reader.end()?;
    Ok(value)
}

/// Decodes arguments; puts in the values of the references among them.
pub fn load_arguments<'py>(
    py: Python<'py>,
    bytes: &Bytes,
    values: &[Value],
) -> PyResult<Bound<'py, PyTuple>> {
    let mut reader = Reader { py, rest: bytes };
    let count = match reader.marker()? {
        Marker::FixArray(count) => usize::from(count),
        Marker::Array16 => reader.length(2)?,
        Marker::Array32 => reader.length(4)?,
        _ => return Err(reader.broken("the arguments are not a list")),
    };
    let mut args = Vec::new();
    for _ in 0..count {
        args.push(match reader.reference()? {
            None => reader.value(0)?,
            Some(index) => {
                let value = values.get(index);
                let value = value.ok_or_else(|| reader.broken("a reference without its value"))?;
                pickle::decode(py, &value.payload)?
            }
        });
    }
    reader.end()?;
    PyTuple::new(py, args)
}

struct Reader<'py, 'a> {
    py: Python<'py>,
    rest: &'a [u8],
}

impl<'py, 'a> Reader<'py, 'a> {
    fn broken(&self, why: &str) -> PyErr {
        invalid(self.py, format!("this is not the MessagePack of plain data: {why}"))
    }

    fn end(&self) -> PyResult<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.broken("bytes follow the value")) }
    }

    fn marker(&mut self) -> PyResult<Marker> {
        read_marker(&mut self.rest).map_err(|_| self.broken("it ends too early"))
    }

    fn take(&mut self, count: usize) -> PyResult<&'a [u8]> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or_else(|| self.broken("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> PyResult<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many as were asked for"))
    }

    /// Reads a big-endian length of `width` bytes.
    fn length(&mut self, width: usize) -> PyResult<usize> {
        Ok(self.take(width)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    /// If a reference comes next, takes it and returns its index.
    fn reference(&mut self) -> PyResult<Option<usize>> {
        let [marker, kind, a, b, c, d, ..] = *self.rest else { return Ok(None) };
        if marker != Marker::FixExt4.to_u8() || kind != REFERENCE.to_be_bytes()[0] {
            return Ok(None);
        }
        self.take(6)?;
        Ok(Some(u32::from_be_bytes([a, b, c, d]) as usize))
    }

    fn value(&mut self, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        use Marker::*;
        let py = self.py;
        if depth > MAX_DEPTH {
            return Err(self.broken("it is deeper than MAX_DEPTH"));
        }
        Ok(match self.marker()? {
            Null => py.None().into_bound(py),
            True => PyBool::new(py, true).to_owned().into_any(),
            False => PyBool::new(py, false).to_owned().into_any(),
            FixPos(value) => value.into_pyobject(py)?.into_any(),
            FixNeg(value) => value.into_pyobject(py)?.into_any(),
            U8 => u8::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            U16 => u16::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            U32 => u32::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            U64 => u64::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            I8 => i8::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            I16 => i16::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            I32 => i32::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            I64 => i64::from_be_bytes(self.bytes()?).into_pyobject(py)?.into_any(),
            F32 => PyFloat::new(py, f32::from_be_bytes(self.bytes()?).into()).into_any(),
            F64 => PyFloat::new(py, f64::from_be_bytes(self.bytes()?)).into_any(),
            FixStr(length) => self.text(length.into())?,
            Str8 => self.length(1).and_then(|length| self.text(length))?,
            Str16 => self.length(2).and_then(|length| self.text(length))?,
            Str32 => self.length(4).and_then(|length| self.text(length))?,
            Bin8 => self.length(1).and_then(|length| self.binary(length))?,
            Bin16 => self.length(2).and_then(|length| self.binary(length))?,
            Bin32 => self.length(4).and_then(|length| self.binary(length))?,
            FixArray(length) => self.list(length.into(), depth)?,
            Array16 => self.length(2).and_then(|length| self.list(length, depth))?,
            Array32 => self.length(4).and_then(|length| self.list(length, depth))?,
            FixMap(length) => self.map(length.into(), depth)?,
            Map16 => self.length(2).and_then(|length| self.map(length, depth))?,
            Map32 => self.length(4).and_then(|length| self.map(length, depth))?,
            FixExt1 | FixExt2 | FixExt4 | FixExt8 | FixExt16 | Ext8 | Ext16 | Ext32 => {
                return Err(self.broken("it has an extension"));
            }
            Reserved => return Err(self.broken("it has a reserved byte")),
        })
    }

    fn text(&mut self, length: usize) -> PyResult<Bound<'py, PyAny>> {
        let text = str::from_utf8(self.take(length)?);
        let text = text.map_err(|_| self.broken("a text is not UTF-8"))?;
        Ok(PyString::new(self.py, text).into_any())
    }

    fn binary(&mut self, length: usize) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyBytes::new(self.py, self.take(length)?).into_any())
    }

    fn list(&mut self, length: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        for _ in 0..length {
            list.append(self.value(depth + 1)?)?;
        }
        Ok(list.into_any())
    }

    fn map(&mut self, length: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let map = PyDict::new(self.py);
        for _ in 0..length {
            map.set_item(self.value(depth + 1)?, self.value(depth + 1)?)?;
        }
        Ok(map.into_any())
    }
}

fn too_many_parts(value: &Bound<'_, PyAny>) -> PyErr {
    let class = value.get_type().to_string();
    invalid(
        value.py(),
        format!("plain data has at most {} parts in a value: {class} has more", u32::MAX),
    )
}

fn invalid(py: Python<'_>, words: String) -> PyErr {
    to_python(py, &Error::invalid(words))
}
