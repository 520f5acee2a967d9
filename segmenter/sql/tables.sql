-- Tables and views that a query can name.
--
-- table_schema  public for views and attached files, stored for the tables as they are on disk
-- table_name    the name
-- table_type    VIEW or BASE TABLE
SELECT table_schema, table_name, table_type
FROM information_schema.tables
WHERE table_schema IN ('public', 'stored')
